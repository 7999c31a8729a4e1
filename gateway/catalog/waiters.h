// Who waits for the next version of something that is followed.
//
// Thread safety: all methods from any thread; wakes run without locks.

#ifndef FAILBACK_GATEWAY_CATALOG_WAITERS_H_
#define FAILBACK_GATEWAY_CATALOG_WAITERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
        waiting_[++last_id_] = std::move(wake);
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

// A `wake` that is to come. Destroying it withdraws it.
class Wait {
 public:
  Wait() = default;
  Wait(std::shared_ptr<Waiters> waiters, uint64_t id) : waiters_(std::move(waiters)), id_(id) {}
  Wait(Wait&& other) noexcept : waiters_(std::move(other.waiters_)), id_(other.id_) {}
  Wait& operator=(Wait&& other) noexcept {
    std::swap(waiters_, other.waiters_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Wait() {
    if (waiters_ != nullptr) waiters_->Remove(id_);
  }

 private:
  std::shared_ptr<Waiters> waiters_;
  uint64_t id_ = 0;
};

}  // namespace failback::catalog

#endif  // FAILBACK_GATEWAY_CATALOG_WAITERS_H_
