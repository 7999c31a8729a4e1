// Timing wheels as tests have them.

#ifndef FAILBACK_TESTS_UTIL_TIMERS_H_
#define FAILBACK_TESTS_UTIL_TIMERS_H_

#include <memory>

#include "absl/time/time.h"
#include "retry/clock.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// A wheel on `clock`, which outlives it: on a simulated one it runs while that is advanced.
inline std::unique_ptr<HashedWheelTimer> NewTimer(
    Clock* clock, absl::Duration tick = HashedWheelTimer::Options().tick_duration) {
  HashedWheelTimer::Options options;
  options.clock = clock;
  options.tick_duration = tick;
  return HashedWheelTimer::Create(options).value();
}

// On the real clock.
inline std::unique_ptr<HashedWheelTimer> NewTimer(
    absl::Duration tick = HashedWheelTimer::Options().tick_duration) {
  return NewTimer(Clock::Real(), tick);
}

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_TIMERS_H_
