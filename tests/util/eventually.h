// Waits for what no event reports: asks again, more and more seldom, until a condition holds.
//
//   EXPECT_TRUE(Eventually([&] { return server->Stats().streams == 0; }));
//
// Thread safety: as the condition's.

#ifndef FAILBACK_TESTS_UTIL_EVENTUALLY_H_
#define FAILBACK_TESTS_UTIL_EVENTUALLY_H_

#include <algorithm>
#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/util/process.h"

namespace failback {

// False when `condition` does not hold within `timeout`.
inline bool Eventually(const std::function<bool()>& condition,
                       absl::Duration timeout = kProcessTimeout) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Duration pause = absl::Microseconds(100);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(20));
  }
  return true;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_EVENTUALLY_H_
