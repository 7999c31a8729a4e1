// How long to wait before the next attempt.
//
// Capped exponential backoff with jitter: attempt n waits for a random share of
// min(max, initial * multiplier^(n-1)). With full jitter (the default) the share is uniform
// in [0, 1), which spreads clients that failed together over the whole interval ("Exponential
// Backoff And Jitter", AWS Architecture Blog, 2015). Randomness comes in from outside, so
// that tests assert exact delays.
//
// Example:
//
//   Random random = EntropyRandom();
//   BackoffOptions options;                                  // 500 ms, x2, at most 30 s
//   absl::Duration wait = BackoffDelay(options, /*times=*/3, random());   // in [0, 2 s)
//
// Thread safety: the functions are pure. A Random may be called from any thread.

#ifndef FAILBACK_RETRY_BACKOFF_H_
#define FAILBACK_RETRY_BACKOFF_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace failback {

// Uniform in [0, 1).
using Random = std::function<double()>;

// Seeded from the system's entropy.
Random EntropyRandom();
// The same sequence for the same seed.
Random SeededRandom(uint64_t seed);

struct BackoffOptions {
  // Ceiling of the first wait.
  absl::Duration initial = absl::Milliseconds(500);
  // Growth of the ceiling with each further one; at least 1.
  double multiplier = 2.0;
  // The ceiling never grows beyond.
  absl::Duration max = absl::Seconds(30);
  // The random part of a wait, 0 to 1: 0 waits for the whole ceiling, 0.2 for 80 to 100 % of it, 1
  // (full jitter) for 0 to 100 %.
  double jitter = 1.0;
};

// INVALID_ARGUMENT naming the field, its value and what is allowed.
absl::Status ValidateBackoff(const std::string& path, const BackoffOptions& options);

// The wait before attempt `times` (from 1; less counts as 1), with `random` in [0, 1).
absl::Duration BackoffDelay(const BackoffOptions& options, int times, double random);

// The wait that a server has asked for, stretched by a random share of how often in a row it has
// asked before: `asked` * (1 + random * refusals), up to a minute, and never less than `asked`.
// Clients that were refused together and come back together are refused together again; this pulls
// them apart.
absl::Duration StretchedDelay(absl::Duration asked, int refusals, double random);

}  // namespace failback

#endif  // FAILBACK_RETRY_BACKOFF_H_
