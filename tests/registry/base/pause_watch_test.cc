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

// As the heartbeat of an owner: returns whether one that is `late` is an absence.
bool Beat(PauseWatch* watch, int64_t late, int64_t* now) {
  *now += watch->Begin(*now) + late;
  const bool absent = watch->Notice(*now, *now);
  watch->End();
  return absent;
}

TEST(PauseWatchTest, AbsencesWithinATtlAddUp) {
  for (int64_t between = 0; between < 4; ++between) {
    PauseWatch watch;
    watch.Granted(kTtl);
    int64_t now = 1000000;
    EXPECT_FALSE(Beat(&watch, kTtl * 45 / 100, &now));
    for (int64_t i = 0; i < between; ++i) ASSERT_FALSE(Beat(&watch, 0, &now));
    EXPECT_TRUE(Beat(&watch, kTtl * 30 / 100, &now)) << between;
    EXPECT_FALSE(Beat(&watch, kTtl * 45 / 100, &now)) << "every lease has a full TTL since then";
  }
}

TEST(PauseWatchTest, AbsencesThatAreFarApartDoNot) {
  PauseWatch watch;
  watch.Granted(kTtl);
  int64_t now = 1000000;
  for (int i = 0; i < 20; ++i) {
    ASSERT_FALSE(Beat(&watch, kTtl * 45 / 100, &now)) << i;
    for (int64_t calm = 0; calm < 20; ++calm) ASSERT_FALSE(Beat(&watch, 0, &now));
  }
}

TEST(PauseWatchTest, ATimerWhoseEachTickIsLateIsNoAbsence) {
  PauseWatch watch;
  watch.Granted(kTtl);
  int64_t now = 1000000;
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(Beat(&watch, kTtl / 8, &now)) << i;
}

}  // namespace
}  // namespace failback
