// A HashedWheelTimer under a simulated clock, and tasks that note when they run.

#ifndef FAILBACK_TESTS_RETRY_TIMER_FIXTURE_H_
#define FAILBACK_TESTS_RETRY_TIMER_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"

namespace failback {

constexpr int64_t kMillisecond = 1000000;

class HashedWheelTimerTest : public ::testing::Test {
 protected:
  HashedWheelTimer::Options Options() {
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    options.name = "test";
    return options;
  }

  std::unique_ptr<HashedWheelTimer> Create() { return HashedWheelTimer::Create(Options()).value(); }

  // A task that notes its name and when it runs, in milliseconds.
  TimerTask Note(const std::string& name) {
    return [this, name] {
      ran_.push_back(name + "@" + std::to_string(clock_.NowNanos() / kMillisecond));
    };
  }

  SimulatedClock clock_;
  std::vector<std::string> ran_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_RETRY_TIMER_FIXTURE_H_
