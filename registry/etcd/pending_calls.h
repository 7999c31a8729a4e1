// The callbacks of a registry that have not run: each runs once, by its answer or by the registry's
// end.
//
//   PendingCalls calls;
//   core->Find(…, calls.Add(std::move(done)));     // the answer, or …
//   calls.Close(absl::CancelledError("…"));        // … the end, for those that have had none
//
// Thread safety: all methods from any thread; what Add has returned may run after the PendingCalls
// has gone.

#ifndef FAILBACK_REGISTRY_ETCD_PENDING_CALLS_H_
#define FAILBACK_REGISTRY_ETCD_PENDING_CALLS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class PendingCalls {
 public:
  // A callback that runs `done`, unless Close has or does.
  template <typename Response>
  Callback<Response> Add(Callback<Response> done) {
    auto held = std::make_shared<Callback<Response>>(std::move(done));
    uint64_t id;
    bool closed;
    {
      MutexLock lock(&table_->mu);
      id = ++table_->last_id;
      closed = table_->closed;
      if (!closed) {
        table_->calls.emplace(id,
                              [held](const absl::Status& status) { std::move (*held)(status); });
      }
    }
    if (closed) {
      std::move (*held)(absl::CancelledError("the registry is being destroyed"));
      return [](const absl::StatusOr<Response>&) {};
    }
    return [table = table_, id, held](absl::StatusOr<Response> response) mutable {
      if (!table->Begin(id)) return;
      std::move (*held)(std::move(response));
      table->End();
    };
  }

  // Runs what has not run with `status`, and waits for those that run now, except in this very
  // thread.
  void Close(const absl::Status& status) {
    absl::flat_hash_map<uint64_t, std::function<void(const absl::Status&)>> calls;
    {
      MutexLock lock(&table_->mu);
      table_->closed = true;
      calls.swap(table_->calls);
    }
    for (auto& [id, fail] : calls) fail(status);
    MutexLock lock(&table_->mu);
    const auto others = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return std::any_of(table_->running.begin(), table_->running.end(),
                         [](std::thread::id id) { return id != std::this_thread::get_id(); });
    };
    // A thread that is inside itself may be waited for by the others.
    if (!table_->running.empty() && InsideItself()) return;
    while (others()) table_->ended.Wait(&table_->mu);
  }

 private:
  struct Table {
    // Whether the call is still to be answered; then it is answered now.
    bool Begin(uint64_t id) {
      MutexLock lock(&mu);
      if (calls.erase(id) == 0) return false;
      running.push_back(std::this_thread::get_id());
      return true;
    }
    void End() {
      MutexLock lock(&mu);
      running.erase(std::find(running.begin(), running.end(), std::this_thread::get_id()));
      if (closed) ended.SignalAll();
    }

    Mutex mu;
    CondVar ended;
    bool closed ABSL_GUARDED_BY(mu) = false;
    uint64_t last_id ABSL_GUARDED_BY(mu) = 0;
    absl::flat_hash_map<uint64_t, std::function<void(const absl::Status&)>> calls
        ABSL_GUARDED_BY(mu);
    std::vector<std::thread::id> running ABSL_GUARDED_BY(mu);
  };

  bool InsideItself() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_->mu) {
    return std::find(table_->running.begin(), table_->running.end(), std::this_thread::get_id()) !=
           table_->running.end();
  }

  const std::shared_ptr<Table> table_ = std::make_shared<Table>();
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_PENDING_CALLS_H_
