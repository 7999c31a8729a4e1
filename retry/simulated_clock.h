// A clock that stands still until a test advances it, and drives the timers that use it.
//
// Example:
//
//   SimulatedClock clock;
//   HashedWheelTimer::Options options;
//   options.clock = &clock;                       // no thread: the clock drives the timer
//   auto timer = HashedWheelTimer::Create(options).value();
//   timer->NewTimeout([] { … }, absl::Seconds(5)).IgnoreError();
//   clock.Advance(absl::Seconds(5));              // runs the task here, and returns
//
// Contract:
//   * Tasks run in time order, those of one tick in the order in which they were added; where
//     several timers share the clock, a tie goes to the timer that was created first.
//   * Inside a task NowNanos is the time of the task's tick, not the end of the advance.
//   * A task may add, cancel and reschedule; what it adds within the advance runs within it.
//   * Advance from inside a task is a programming error.
//
// Thread safety: NowNanos, WallNow, Attach and Detach from any thread. What moves time or asks for
// the next deadline, one thread at a time.

#ifndef FAILBACK_RETRY_SIMULATED_CLOCK_H_
#define FAILBACK_RETRY_SIMULATED_CLOCK_H_

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "retry/clock.h"
#include "retry/mutex.h"

namespace failback {

class SimulatedClock final : public Clock {
 public:
  // Reads `start_nanos` until advanced; the wall clock starts at `wall`.
  explicit SimulatedClock(int64_t start_nanos = 0,
                          absl::Time wall = absl::FromUnixSeconds(1700000000));

  int64_t NowNanos() const override { return now_.load(std::memory_order_acquire); }
  absl::Time WallNow() const override;
  bool DrivesTimers() const override { return true; }
  void Attach(const std::shared_ptr<ClockDriven>& driven) override;
  void Detach(const ClockDriven* driven) override;

  // Moves time on by `duration`, step by step, and runs what becomes due. A negative duration
  // moves nothing; what is due already runs even so.
  void Advance(absl::Duration duration);

  // Moves time on to the next event of any timer and runs it; an event may be internal to a
  // timer, so that no task runs. Returns false, and moves nothing, if no timer waits for
  // anything.
  bool AdvanceToNextTimer();

  // Jumps as a machine that was asleep: nothing runs on the way. What became due runs at the
  // next Advance (Advance(absl::ZeroDuration()) will do), and is late.
  void Jump(absl::Duration duration);

  // The earliest time at which any timer may have something to run.
  std::optional<int64_t> NextDeadlineNanos();

 private:
  // A timer, and when it is due as far as it has said. It is asked again when it may be sooner.
  struct Attached {
    const std::shared_ptr<ClockDriven> driven;
    std::optional<int64_t> due_nanos;  // of who advances
  };
  using AttachedList = std::vector<std::shared_ptr<Attached>>;

  // The timer to run next, with the time to run it at.
  std::shared_ptr<ClockDriven> Earliest(int64_t* due_nanos);

  const int64_t start_nanos_;
  const absl::Time wall_start_;
  std::atomic<int64_t> now_;

  Mutex mu_;
  // Never changed, but replaced: each step looks at all of them.
  std::shared_ptr<const AttachedList> attached_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<const AttachedList>();
};

}  // namespace failback

#endif  // FAILBACK_RETRY_SIMULATED_CLOCK_H_
