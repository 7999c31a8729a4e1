// HashedWheelTimer: runs tasks after a delay, millions of them, mostly cancelled or put off.
//
// Choose it for retries, leases, heartbeats and deadlines: adding, cancelling and rescheduling are
// O(1) and cost about as much as reading the clock, and an idle timer costs nothing. It is not for
// delays below its tick, nor for the time of day.
//
// Algorithm: a Wheel (see retry/wheel.h) for each of a few shards. A thread adds to its own shard,
// under a short lock. One driver thread sleeps until the earliest event of any shard, and runs what
// is due, or hands it to an executor. Names and behaviour follow Netty's and Dubbo's
// HashedWheelTimer; docs/wheel.md says what differs, why, and what it measures.
//
// Example:
//
//   HashedWheelTimer::Options options;
//   options.tick_duration = absl::Milliseconds(10);
//   std::unique_ptr<HashedWheelTimer> timer = HashedWheelTimer::Create(options).value();
//   Timeout lease = timer->NewTimeout([] { Expire(); }, absl::Seconds(30)).value();
//   lease.Reschedule(absl::Seconds(30));               // renewed
//   if (!lease.Cancel()) lease.Wait();                 // now it does not run, and will not
//
// Contract of a task:
//   * It never starts before its deadline; it starts at most one tick and 11 us after it,
//     plus the time that earlier tasks take on the same thread.
//   * Tasks start in the order of their ticks. Within a tick the order is unspecified; under a
//     SimulatedClock it is that of NewTimeout and Reschedule.
//   * It may add, cancel, reschedule and wait, for itself too, and destroy the timer; Stop is an
//     error there. It may throw: that is logged and counted, and the timer goes on.
//   * It is destroyed on the thread that ran it, or in Cancel, never under a lock of the timer.
//
// Thread safety: all methods of HashedWheelTimer from any thread. A Timeout is a plain value:
// one thread at a time.
//
// Invariants:
//   1. A timeout that NewTimeout accepted is run, cancelled or returned by Stop: exactly one.
//   2. Cancel returns true if and only if it is cancelled by this call.
//   3. pending() counts those accepted that are not yet started, cancelled or returned.
//   4. A handle refers to its own timeout or to none, whatever has become of the timer.

#ifndef FAILBACK_RETRY_HASHED_WHEEL_TIMER_H_
#define FAILBACK_RETRY_HASHED_WHEEL_TIMER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "retry/clock.h"
#include "retry/executor.h"
#include "retry/histogram.h"

namespace failback {

using TimerTask = absl::AnyInvocable<void() &&>;

namespace internal_timer {
struct Core;
struct Shard;
}  // namespace internal_timer

// One timeout, pending or over. Dropping the handle does not cancel, so that one may stay unused.
// May outlive its timer.
class [[maybe_unused]] Timeout {
 public:
  Timeout() = default;  // empty: every method returns false
  Timeout(Timeout&& other) noexcept
      : shard_(std::exchange(other.shard_, nullptr)),
        index_(other.index_),
        generation_(std::exchange(other.generation_, 0)) {}
  Timeout& operator=(Timeout&& other) noexcept {
    shard_ = std::exchange(other.shard_, nullptr);
    index_ = other.index_;
    generation_ = std::exchange(other.generation_, 0);
    return *this;
  }

  // True if this call has kept the task from ever running; false if the task has started, has
  // run, was cancelled before or was handed back by Stop.
  bool Cancel();

  // True after a Cancel of this handle that returned true.
  bool IsCancelled() const { return shard_ != nullptr && generation_ == 0; }

  // True if the timeout is neither pending nor cancelled.
  bool IsExpired() const;

  // Sets the deadline to `delay` from now. False, and nothing changes, if the task has started
  // or the timeout is no longer pending.
  bool Reschedule(absl::Duration delay);

  // Returns when the task is not running: at once if it has not started, has ended, or is the
  // caller.
  void Wait();

  explicit operator bool() const { return shard_ != nullptr; }

 private:
  friend struct internal_timer::Core;
  Timeout(internal_timer::Shard* shard, uint32_t index, uint32_t generation)
      : shard_(shard), index_(index), generation_(generation) {}

  internal_timer::Shard* shard_ = nullptr;  // never freed, see Shard
  uint32_t index_ = 0;
  uint32_t generation_ = 0;  // 0: empty, or cancelled through this handle
};

class HashedWheelTimer {
 public:
  struct Options {
    Clock* clock = Clock::Real();
    // A task runs at the first multiple of this at or after its deadline. 1 us to 1 h.
    absl::Duration tick_duration = absl::Milliseconds(100);
    // Slots of the wheel's first level, rounded up to a power of two. 1 to 65536.
    int ticks_per_wheel = 512;
    // With this many pending timeouts NewTimeout refuses; 0: no limit. ScheduleUnbounded does not.
    int64_t max_pending_timeouts = 0;
    // Where tasks run; nullptr: on the timer's own thread. Must outlive the timer.
    Executor* executor = nullptr;
    // No thread: the caller drives the timer with RunDue. A clock that makes its own time
    // (SimulatedClock) drives it in any case.
    bool manual_drive = false;
    // For log messages and the thread's name.
    std::string name = "timer";
    // Called when a task throws; nullptr: standard error.
    std::function<void(const std::string&)> log;
  };

  struct Statistics {
    int64_t pending = 0;
    int64_t scheduled = 0;  // accepted by NewTimeout
    int64_t fired = 0;      // tasks started
    int64_t cancelled = 0;
    int64_t failed = 0;             // tasks that threw
    absl::Duration worst_lateness;  // of a task's start after its deadline
    // The same in nanoseconds, of the last task of each tick on each shard.
    Histogram lateness{kLatencyBoundsNanos};
  };

  // INVALID_ARGUMENT, naming the field, for options out of range.
  static absl::StatusOr<std::unique_ptr<HashedWheelTimer>> Create(Options options);

  // As Stop; what is still pending is dropped. From one of the timer's own tasks it waits for none:
  // that task goes on, and is the last of its thread.
  ~HashedWheelTimer();
  HashedWheelTimer(const HashedWheelTimer&) = delete;
  HashedWheelTimer& operator=(const HashedWheelTimer&) = delete;

  // Runs `task` once, `delay` from now. A delay of zero or less runs at the next tick; one that
  // overflows never runs, and is pending for ever. RESOURCE_EXHAUSTED above
  // max_pending_timeouts: try again when others are done. FAILED_PRECONDITION after Stop.
  absl::StatusOr<Timeout> NewTimeout(TimerTask task, absl::Duration delay);

  // NewTimeout without the bound, for a task that continues what was accepted before: the next try
  // of a call, the next renewal of a lease. There is no caller to refuse to, so
  // max_pending_timeouts counts it and does not refuse it. FAILED_PRECONDITION after Stop.
  absl::StatusOr<Timeout> ScheduleUnbounded(TimerTask task, absl::Duration delay);

  // Ends the timer: no task starts any more, running ones have ended when it returns. Returns
  // the tasks that have neither run nor been cancelled, for the caller to run or drop. A second
  // Stop returns none. FAILED_PRECONDITION from inside a task.
  absl::StatusOr<std::vector<TimerTask>> Stop();

  int64_t pending() const;
  Statistics Stats() const;
  const Clock* clock() const;

  // Manual drive: runs what is due, at most `max_tasks`; returns how many ran. With an executor
  // they are handed to it instead.
  int64_t RunDue(int64_t max_tasks = INT64_MAX);
  // The clock's time at which RunDue may have something to do; nullopt: nothing is pending.
  std::optional<int64_t> NextDueNanos() const;

 private:
  explicit HashedWheelTimer(std::shared_ptr<internal_timer::Core> core);
  const std::shared_ptr<internal_timer::Core> core_;
};

}  // namespace failback

#endif  // FAILBACK_RETRY_HASHED_WHEEL_TIMER_H_
