// A token bucket that hands out reservations: a caller that finds it empty learns how long to wait,
// and has its token when that time is over.
//
//   const absl::Duration wait = bucket.Take(clock->NowNanos());
//   if (wait > absl::ZeroDuration()) …come back after `wait`, without taking again…
//
// It is one number: the time at which the next token is free (the generic cell rate algorithm of
// ATM networks). Waiters therefore come one after the other at the rate, and not all at once.
//
// Thread safety: none; the owner's lock guards it. Pure but for its state: time comes in.

#ifndef FAILBACK_RETRY_TOKEN_BUCKET_H_
#define FAILBACK_RETRY_TOKEN_BUCKET_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace failback {

class TokenBucket {
 public:
  // `per_second` tokens flow in, up to `burst`; both above zero.
  TokenBucket(double per_second, double burst)
      : interval_nanos_(1e9 / per_second),
        burst_nanos_(static_cast<int64_t>(interval_nanos_ * (burst - 1))) {}

  // Takes one token. Zero: now; else the time until it is free. `now_nanos` never goes back.
  absl::Duration Take(int64_t now_nanos) {
    const double now = static_cast<double>(now_nanos);
    const double wait = next_nanos_ - static_cast<double>(burst_nanos_) - now;
    next_nanos_ = std::max(next_nanos_, now) + interval_nanos_;
    return wait > 0 ? absl::Nanoseconds(wait) : absl::ZeroDuration();
  }

 private:
  const double interval_nanos_;
  const int64_t burst_nanos_;
  // When a bucket of no depth would have its next token.
  double next_nanos_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_RETRY_TOKEN_BUCKET_H_
