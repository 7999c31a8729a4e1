#include "registry/server/stream_sweep.h"

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

TEST(SweepPlan, EachTimeoutIsReachedAndNotMuchExceeded) {
  const absl::Duration stalled = absl::Seconds(30);
  const absl::Duration silent = absl::Minutes(10);
  const absl::Duration oldest = absl::Seconds(45);
  const SweepPlan plan = SweepPlan::Of(stalled, silent, oldest);
  EXPECT_EQ(plan.period, absl::Seconds(4.5));  // a tenth of the oldest
  for (const auto& [sweeps, timeout] :
       {std::pair(plan.stalled, stalled), std::pair(plan.silent, silent),
        std::pair(plan.oldest, oldest)}) {
    EXPECT_GE(sweeps * plan.period, timeout);
    EXPECT_LE(sweeps * plan.period, timeout * 1.25) << timeout;
  }
}

TEST(SweepPlan, WithoutALongestAgeNoStreamIsOld) {
  const SweepPlan plan =
      SweepPlan::Of(absl::Seconds(30), absl::Minutes(10), absl::InfiniteDuration());
  EXPECT_EQ(plan.period, absl::Seconds(7.5));
  EXPECT_EQ(plan.stalled, 4);
  EXPECT_EQ(plan.oldest, INT32_MAX);
}

TEST(Jittered, IsSpreadOverAFifthAndTheSameForAStream) {
  std::set<int> seen;
  for (int i = 0; i < 1000; ++i) {
    const auto stream = std::make_unique<int>(i);
    const int sweeps = Jittered(100, stream.get());
    EXPECT_EQ(Jittered(100, stream.get()), sweeps);
    EXPECT_GE(sweeps, 80);
    EXPECT_LE(sweeps, 100);
    seen.insert(sweeps);
  }
  // Nothing that is looked at four times only ends before the last.
  EXPECT_EQ(Jittered(4, &seen), 4);
}

TEST(OldestStream, ConnectionsEndWithinTheirAge) {
  const absl::Duration age = absl::Hours(1);
  const absl::Duration stream = OldestStream(age);
  // The latest GOAWAY, and the grace that connections have then.
  EXPECT_LE(1.1 * stream + 1.1 * stream, 1.05 * age);
}

TEST(OpenStreams, AfterCloseTakesNone) {
  OpenStreams<int> streams;
  const auto one = std::make_shared<int>(1);
  const auto two = std::make_shared<int>(2);
  EXPECT_TRUE(streams.Add(one));
  EXPECT_TRUE(streams.Add(two));
  streams.Remove(two);
  EXPECT_EQ(streams.size(), 1);
  EXPECT_EQ(streams.Close(), std::set<std::shared_ptr<int>>{one});
  EXPECT_FALSE(streams.Add(two));
  EXPECT_EQ(streams.size(), 0);
}

}  // namespace
}  // namespace failback
