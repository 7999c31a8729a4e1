#include "registry/base/outage_log.h"

#include "gtest/gtest.h"

namespace failback {
namespace {

constexpr int64_t kSecond = int64_t{1000} * 1000 * 1000;

TEST(OutageLogTest, AFailureAndItsEndAreSaidAtOnce) {
  OutageLog log;
  EXPECT_FALSE(log.Worked(1 * kSecond)) << "nothing has failed";
  EXPECT_TRUE(log.Failed(2 * kSecond));
  EXPECT_FALSE(log.Failed(3 * kSecond));
  EXPECT_TRUE(log.Worked(4 * kSecond));
  EXPECT_FALSE(log.Worked(5 * kSecond));
  // An hour later it is news again.
  EXPECT_TRUE(log.Failed(3600 * kSecond));
  EXPECT_TRUE(log.Worked(3601 * kSecond));
}

// A nearly full disk: small writes pass, large ones do not.
TEST(OutageLogTest, WhatFailsAtEveryOtherTurnIsSaidOnceAMinuteAtMost) {
  OutageLog log;
  int said = 0;
  int64_t now = 0;
  for (; now < 600 * kSecond; now += kSecond) {
    if (now / kSecond % 2 == 0 ? log.Failed(now) : log.Worked(now)) ++said;
  }
  EXPECT_EQ(said, 3) << "it fails, it works, and it fails again";
  const int64_t last = now - 2 * kSecond;
  while (!log.Worked(now)) now += kSecond;
  EXPECT_EQ(now - last, 60 * kSecond) << "after a quiet minute";
}

}  // namespace
}  // namespace failback
