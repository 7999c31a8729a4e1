#include "retry/clock.h"

#include <time.h>

#include "absl/time/clock.h"

namespace failback {
namespace {

class RealClock final : public Clock {
 public:
  int64_t NowNanos() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
  }
  absl::Time WallNow() const override { return absl::Now(); }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

}  // namespace failback
