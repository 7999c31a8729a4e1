// Who waits for the next version of something. Internal to the catalog.
//
// Thread safety: all methods from any thread; wakes run without locks.

#ifndef FAILBACK_GATEWAY_CATALOG_WAITERS_H_
#define FAILBACK_GATEWAY_CATALOG_WAITERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "retry/executor.h"
#include "retry/mutex.h"

namespace failback::catalog {

class Waiters {
 public:
  // The version from now on, and who waits for it is woken. A lower one than that of an earlier
  // call is none. `executor` null: they run here.
  void Publish(uint64_t version, Executor* executor) {
    std::vector<std::function<void()>> wakes;
    {
      MutexLock lock(&mu_);
      if (version <= version_) return;
      version_ = version;
      wakes.reserve(waiting_.size());
      for (auto& [id, wake] : waiting_) wakes.push_back(std::move(wake));
      waiting_.clear();
    }
    if (wakes.empty()) return;
    const auto run = [wakes = std::move(wakes)] {
      for (const auto& wake : wakes) wake();
    };
    if (executor == nullptr) return run();
    executor->Execute(run);
  }

  // Zero, and `wake` has run, when another version than `seen` is published already.
  uint64_t Add(uint64_t seen, std::function<void()> wake) {
    {
      MutexLock lock(&mu_);
      if (version_ <= seen) {
        waiting_.emplace(++last_id_, std::move(wake));
        return last_id_;
      }
    }
    wake();
    return 0;
  }

  void Remove(uint64_t id) {
    std::function<void()> wake;  // destroyed without the lock
    MutexLock lock(&mu_);
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) return;
    wake = std::move(it->second);
    waiting_.erase(it);
  }

  size_t size() const {
    MutexLock lock(&mu_);
    return waiting_.size();
  }

 private:
  mutable Mutex mu_;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback::catalog

#endif  // FAILBACK_GATEWAY_CATALOG_WAITERS_H_
