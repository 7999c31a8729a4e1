// A task that a timer runs when it is wanted, once at a time.
//
//   Wakeup purge(timer, [this] { Purge(); });
//   purge.Arm(absl::Seconds(5));
//   purge.Arm(absl::Seconds(1));  // runs once, after a second
//   purge.Stop();
//
// What is armed while the task runs comes after it: the task may arm itself, and does not run twice
// at a time.
//
// Thread safety: all methods from any thread; the task runs on the timer's threads, without locks.

#ifndef FAILBACK_REGISTRY_STORE_WAKEUP_H_
#define FAILBACK_REGISTRY_STORE_WAKEUP_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {

class Wakeup {
 public:
  // `timer` outlives this.
  Wakeup(HashedWheelTimer* timer, std::function<void()> task);
  ~Wakeup() { Stop(); }
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  // Runs the task after `delay`; where it is armed already the earlier time counts.
  void Arm(absl::Duration delay);
  // The same, but the later call counts.
  void PutOff(absl::Duration delay);
  // The task does not run any more, and is not running when this returns. Not from the task.
  void Stop();

 private:
  void SetDue(int64_t due_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  int64_t Now() const;

  HashedWheelTimer* const timer_;
  const std::function<void()> task_;

  Mutex mu_;
  CondVar idle_;
  std::optional<int64_t> due_nanos_ ABSL_GUARDED_BY(mu_);  // while it is armed
  Timeout timeout_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_WAKEUP_H_
