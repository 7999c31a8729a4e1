// Where time comes from.
//
// Everything in Failback that waits asks a Clock, so that a test can hand in a SimulatedClock and
// run hours in a millisecond. `NowNanos` is what deadlines are made of: it never goes back and
// does not follow the wall clock. `WallNow` is for people: logs, tables, time stamps.
//
// Thread safety: all methods may be called from any thread.

#ifndef FAILBACK_RETRY_CLOCK_H_
#define FAILBACK_RETRY_CLOCK_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"

namespace failback {

// What a clock that makes its own time (SimulatedClock) drives: a timer without a thread.
class ClockDriven {
 public:
  virtual ~ClockDriven() = default;

  // When the next task can be due, in the clock's nanoseconds; nullopt: nothing waits.
  // May be earlier than the task, never later.
  virtual std::optional<int64_t> NextDueNanos() = 0;

  // Runs what is due at the clock's present time. Returns how many tasks ran.
  virtual int64_t RunDue() = 0;

  // Whether NextDueNanos may be earlier than when it was last asked, but for what RunDue has done;
  // once. A clock with many timers asks them this before each step.
  virtual bool TakeSooner() { return true; }
};

class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic nanoseconds since an arbitrary origin, never negative.
  virtual int64_t NowNanos() const = 0;

  // The time of day.
  virtual absl::Time WallNow() const = 0;

  // True for a clock that makes its own time and calls those attached to it when it moves. Who
  // waits on any other clock needs a thread of its own.
  virtual bool DrivesTimers() const { return false; }
  virtual void Attach(const std::shared_ptr<ClockDriven>& /*driven*/) {}
  virtual void Detach(const ClockDriven* /*driven*/) {}

  // The system's monotonic clock; never destroyed. On Linux it stands still while the machine
  // is suspended.
  static Clock* Real();
};

}  // namespace failback

#endif  // FAILBACK_RETRY_CLOCK_H_
