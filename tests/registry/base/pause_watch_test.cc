// Which absences of a process its leases notice.

#include "registry/base/pause_watch.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace failback {
namespace {

constexpr int64_t kTtl = 9600;

TEST(PauseWatchTest, ATimeoutInTimeIsNoAbsence) {
  PauseWatch watch;
  EXPECT_EQ(watch.smallest_ttl(), INT64_MAX);
  watch.Granted(2 * kTtl);
  watch.Granted(kTtl);
  watch.Granted(3 * kTtl);
  EXPECT_EQ(watch.smallest_ttl(), kTtl);
  EXPECT_FALSE(watch.Notice(100, 100));
  EXPECT_FALSE(watch.Notice(100, 100 + kTtl / 2));
  EXPECT_TRUE(watch.Notice(100, 101 + kTtl / 2));
  watch.Clear();
  EXPECT_EQ(watch.smallest_ttl(), INT64_MAX);
}

TEST(PauseWatchTest, OneAbsenceIsToldOfOnce) {
  PauseWatch watch;
  watch.Granted(kTtl);
  const int64_t due = watch.Begin(0);
  ASSERT_TRUE(watch.beating());
  const int64_t back = due + 2 * kTtl;
  EXPECT_TRUE(watch.Notice(back, back)) << "the heartbeat is late, whatever runs first";
  EXPECT_FALSE(watch.Notice(back, back + 1));
  watch.End();
  EXPECT_FALSE(watch.beating());
  EXPECT_FALSE(watch.Notice(back, back));
}

// A client that renews every third of its TTL has two thirds left when it has renewed; an absence
// that takes them is noticed, whenever it begins.
TEST(PauseWatchTest, NoAbsenceOfTwoThirdsOfATtlGoesUnnoticed) {
  for (int64_t gone = 0; gone <= kTtl / 8; gone += kTtl / 80) {
    PauseWatch watch;
    watch.Granted(kTtl);
    ASSERT_LE(watch.Begin(0), kTtl / 8);
    const int64_t back = gone + kTtl * 2 / 3;
    EXPECT_TRUE(watch.Notice(back, back)) << gone;
  }
}

}  // namespace
}  // namespace failback
