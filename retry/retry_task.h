// A failed call that schedules its own retries on the timing wheel.
//
// When it is tried again, and when it parks, is decided by RetryRule (retry/retry_rule.h), the rule
// of Dubbo's AbstractRetryTask, of which FailedRegisteredTask is one. A parked task is kept and can
// be re-armed.
//
// The task does not make the call. When it is due it calls `on_due` on the wheel's thread; its
// owner begins an asynchronous call there and reports a failure with Failed(), or destroys the task
// on success. Nothing blocks the wheel.
//
// Example: the first call has failed, and puts its task on the wheel.
//
//   task = std::make_unique<RetryTask>(timer.get(), &policy, &random);
//   task->Failed(std::nullopt, [this] {
//     if (!task->Begin()) return;  // cancelled meanwhile
//     Call();                      // and when that fails: task->Failed(…) again
//   });
//
// Thread safety: none of its own. The owner calls every method under one lock of its own; `on_due`
// runs without it. A due task that was cancelled meanwhile is found out by Begin(), so the owner's
// order of events decides and not a race with the wheel.
//
// Invariants:
// 1. At most one timeout is on the wheel, and only in state kWaiting.
// 2. After Cancel() and after destruction `on_due` may still run once (it was already under way)
//    and then Begin() returns false; so the owner must be found through a weak reference.

#ifndef FAILBACK_RETRY_RETRY_TASK_H_
#define FAILBACK_RETRY_RETRY_TASK_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "retry/backoff.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/retry_rule.h"

namespace failback {

class RetryTask {
 public:
  enum class State {
    kWaiting,  // on the wheel until next_attempt()
    kDue,      // off the wheel, its owner's turn
    kParked,   // out of retries, or parked by its owner
  };

  // All three outlive the task.
  RetryTask(HashedWheelTimer* timer, const RetryPolicy* policy, const Random* random);
  ~RetryTask();
  RetryTask(const RetryTask&) = delete;
  RetryTask& operator=(const RetryTask&) = delete;

  // The call failed. Puts the task on the wheel, or parks it, and returns which. `server_delay` is
  // how long the server asked to wait; it overrides the computed wait, and is stretched when it
  // comes several times in a row (StretchedDelay). The wheel's
  // max_pending_timeouts does not refuse a retry, as what is retried was accepted; a wheel that was
  // stopped does, and the task parks.
  State Failed(std::optional<absl::Duration> server_delay, TimerTask on_due);

  // Puts the task on the wheel for `delay`, whatever its state: it is due, and its owner wants it
  // later (storm control). Does not count as an attempt.
  State Wait(absl::Duration delay, TimerTask on_due);

  // For `on_due`: true exactly once after the task came due, unless it was cancelled or run by
  // hand.
  bool Begin();

  // Takes the task off the wheel for its owner to run it now. A parked one is re-armed: it
  // has all its retries again.
  void RunNow();

  // Parks the task: refused for good, retrying is useless.
  void Park();

  State state() const { return state_; }
  // The attempt that failed last, from 1; 0 before the first has ended.
  int times() const { return rule_.times(); }
  // When the wheel tries again, on the timer's clock in nanoseconds; meaningful in kWaiting.
  int64_t next_attempt_nanos() const { return next_attempt_nanos_; }

 private:
  HashedWheelTimer* const timer_;
  const RetryPolicy* const policy_;
  const Random* const random_;
  Timeout timeout_;
  int64_t next_attempt_nanos_ = 0;
  RetryRule rule_;
  State state_ = State::kDue;
};

}  // namespace failback

#endif  // FAILBACK_RETRY_RETRY_TASK_H_
