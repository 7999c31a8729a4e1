// Knows which threads are inside an object, so that its end can wait for them.
//
// A method that may run while its object is being shut down opens with a Pass and leaves at once
// when that is not ok. Close() refuses new ones and waits for those under way. A thread that is
// inside itself (a callback that destroys the object that called it) does not wait, for its own
// frame nor for other threads, which may be waiting for it.
//
//   void Object::Work() {
//     CallGate::Pass pass(&gate_);
//     if (!pass.ok()) return;
//     …
//   }
//
// Thread safety: all methods from any thread. Nothing else runs under its lock.

#ifndef FAILBACK_REGISTRY_FAILBACK_CALL_GATE_H_
#define FAILBACK_REGISTRY_FAILBACK_CALL_GATE_H_

#include <atomic>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "retry/mutex.h"

namespace failback {

class CallGate {
 public:
  CallGate() = default;
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  class Pass {
   public:
    // `gate` outlives the pass.
    explicit Pass(CallGate* gate) : gate_(gate), ok_(gate->Enter()) {}
    ~Pass() {
      if (ok_) gate_->Leave();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    // False after Close(): leave at once.
    bool ok() const { return ok_; }

   private:
    CallGate* const gate_;
    const bool ok_;
  };

  // Admits no caller any more, and waits until all are out, unless the caller is inside itself.
  void Close() {
    MutexLock lock(&mu_);
    closed_.store(true, std::memory_order_release);
    if (inside_.contains(std::this_thread::get_id())) return;
    while (!inside_.empty()) left_.Wait(&mu_);
  }

  bool closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  bool Enter() {
    MutexLock lock(&mu_);
    if (closed()) return false;
    ++inside_[std::this_thread::get_id()];
    return true;
  }
  void Leave() {
    MutexLock lock(&mu_);
    const auto it = inside_.find(std::this_thread::get_id());
    if (--it->second == 0) inside_.erase(it);
    if (closed()) left_.SignalAll();
  }

  Mutex mu_;
  CondVar left_;
  std::atomic<bool> closed_{false};
  absl::flat_hash_map<std::thread::id, int> inside_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_CALL_GATE_H_
