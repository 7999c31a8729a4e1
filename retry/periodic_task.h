// Work that repeats: heartbeats, lease renewals, sweeps.
//
// The task runs, and when it has ended puts itself back on the wheel, so that runs of one task
// never overlap nor pile up, however slow one is. The next run is due one period after the last
// was *due*; periods that a slow run has used up are skipped, so the rhythm does not drift and
// nothing is caught up on.
//
// Example:
//
//   auto renewal = PeriodicTask::Start(timer.get(), ttl / 3, [&] { Renew(); });
//   …
//   (*renewal)->Stop();   // or let it go out of scope
//
// Contract:
//   * After Stop has returned the work does not run again, and is not running, unless Stop was
//     called from the work itself: then that run is the last.
//   * Work that throws is counted by the timer as failed, and is scheduled again all the same.
//   * When the timer stops, so does the task. The timer must outlive it.
//   * May be destroyed from its own work; that run ends safely and is the last.
//
// Thread safety: all methods may be called from any thread.

#ifndef FAILBACK_RETRY_PERIODIC_TASK_H_
#define FAILBACK_RETRY_PERIODIC_TASK_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class PeriodicTask {
 public:
  // First run one `period` from now, or after `first_delay` where given.
  // INVALID_ARGUMENT for a period that is not positive and finite; otherwise the errors of
  // HashedWheelTimer::NewTimeout.
  static absl::StatusOr<std::unique_ptr<PeriodicTask>> Start(HashedWheelTimer* timer,
                                                             absl::Duration period,
                                                             std::function<void()> work);
  static absl::StatusOr<std::unique_ptr<PeriodicTask>> Start(HashedWheelTimer* timer,
                                                             absl::Duration first_delay,
                                                             absl::Duration period,
                                                             std::function<void()> work);
  ~PeriodicTask();  // as Stop

  PeriodicTask(const PeriodicTask&) = delete;
  PeriodicTask& operator=(const PeriodicTask&) = delete;

  // Cancels by flag and timeout both, and waits for a running run. Idempotent.
  void Stop();

  // How often the work has been started.
  int64_t runs() const;

 private:
  struct State;
  explicit PeriodicTask(std::shared_ptr<State> state);
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace failback

#endif  // FAILBACK_RETRY_PERIODIC_TASK_H_
