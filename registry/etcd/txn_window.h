// Lets only so many transactions be under way at once; the others wait, in order.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_TXN_WINDOW_H_
#define FAILBACK_REGISTRY_ETCD_TXN_WINDOW_H_

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class TxnWindow {
 public:
  explicit TxnWindow(int most) : most_(most) {}

  // Runs `begin` now, or when a transaction before it leaves. Each that has begun calls Leave once.
  void Enter(absl::AnyInvocable<void() &&> begin) {
    {
      MutexLock lock(&mu_);
      if (in_flight_ >= most_) {
        waiting_.push_back(std::move(begin));
        return;
      }
      ++in_flight_;
    }
    std::move(begin)();
  }

  void Leave() {
    absl::AnyInvocable<void() &&> next;
    {
      MutexLock lock(&mu_);
      if (waiting_.empty()) {
        --in_flight_;
        return;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    std::move(next)();
  }

 private:
  const int most_;
  Mutex mu_;
  int in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<absl::AnyInvocable<void() &&>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_TXN_WINDOW_H_
