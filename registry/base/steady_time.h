// Moments of the monotonic clock, for deadlines and ages.
//
// absl::Now() follows the clock on the wall: set back by an hour, it makes a deadline of five
// seconds one of an hour. These do not. They are durations since an arbitrary origin, so that they
// are not taken for a time of day.
//
//   const SteadyTime deadline = SteadyNow() + absl::Seconds(5);
//
// Thread safety: all functions.

#ifndef FAILBACK_REGISTRY_BASE_STEADY_TIME_H_
#define FAILBACK_REGISTRY_BASE_STEADY_TIME_H_

#include "absl/time/time.h"
#include "retry/clock.h"

namespace failback {

using SteadyTime = absl::Duration;

inline SteadyTime SteadyNow() { return absl::Nanoseconds(Clock::Real()->NowNanos()); }

// Before every moment.
inline SteadyTime SteadyPast() { return -absl::InfiniteDuration(); }

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_STEADY_TIME_H_
