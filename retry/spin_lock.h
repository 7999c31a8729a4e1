// A lock for sections of a few dozen instructions.
//
// Taking it costs one atomic exchange and releasing it a plain store, about half of what a
// mutex costs; the timer takes one for every schedule, cancel and run. Choose Mutex for anything
// that allocates, calls out or waits.
//
// A thread that finds it taken looks again now and then, and soon yields its processor, so that a
// holder that was preempted gets to run. It is not fair, and gains by that: every look takes the
// lock's memory away from the holder's processor. Left alone, the holder gets several sections
// done before the other has its turn.

#ifndef FAILBACK_RETRY_SPIN_LOCK_H_
#define FAILBACK_RETRY_SPIN_LOCK_H_

#include <sched.h>

#include <atomic>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"

namespace failback {

class ABSL_LOCKABLE SpinLock {
 public:
  SpinLock() = default;
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (ABSL_PREDICT_FALSE(taken_.exchange(true))) LockSlow();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { taken_.store(false, std::memory_order_release); }

  // Whether a thread holds it. Sequentially consistent with Lock: of a thread that writes A and
  // then asks here, and one that takes the lock and then reads A, one notices the other.
  bool IsTaken() const { return taken_.load(); }

 private:
  void LockSlow() {
    constexpr int kLooks = 32;
    for (int looks = 0;; ++looks) {
      if (!taken_.load(std::memory_order_relaxed) && !taken_.exchange(true)) return;
      if (looks < kLooks) {
        Pause();
      } else {
        sched_yield();
      }
    }
  }

  // For some hundred nanoseconds.
  static void Pause() {
#if defined(__x86_64__) || defined(__i386__)
    constexpr int kPauses = 16;
    for (int i = 0; i < kPauses; ++i) __builtin_ia32_pause();
#endif
  }

  std::atomic<bool> taken_{false};
};

class ABSL_SCOPED_LOCKABLE SpinLockHolder {
 public:
  explicit SpinLockHolder(SpinLock* lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) {
    lock_->Lock();
  }
  ~SpinLockHolder() ABSL_UNLOCK_FUNCTION() { lock_->Unlock(); }
  SpinLockHolder(const SpinLockHolder&) = delete;
  SpinLockHolder& operator=(const SpinLockHolder&) = delete;

 private:
  SpinLock* const lock_;
};

}  // namespace failback

#endif  // FAILBACK_RETRY_SPIN_LOCK_H_
