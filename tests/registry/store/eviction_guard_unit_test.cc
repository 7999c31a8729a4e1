#include "gtest/gtest.h"
#include "registry/store/eviction_guard.h"

namespace failback {
namespace {

constexpr int64_t kSecond = int64_t{1000} * 1000 * 1000;
constexpr int64_t kTtl = 10 * kSecond;

class EvictionGuardTest : public ::testing::Test {
 protected:
  // Of 100 sessions without an owner, `failing_` miss their renewals.
  bool MayEnd(int64_t now, int64_t ttl = kTtl) {
    return guard_
        .Vote(ttl, now,
              [&](EvictionVote::Owners* owners) {
                ++counted_;
                for (int i = 0; i < 100; ++i) (*owners)[""].Add(i < failing_);
              })
        .MayEnd("");
  }

  EvictionGuard guard_{true, {20, 0.15}, 0};
  int failing_ = 0;
  int counted_ = 0;
};

TEST_F(EvictionGuardTest, OneCountServesTheDecisionsOfAMoment) {
  EXPECT_TRUE(MayEnd(kSecond));
  failing_ = 50;
  EXPECT_TRUE(MayEnd(kSecond + EvictionGuard::kCountEveryNanos - 1));
  EXPECT_EQ(counted_, 1);
  EXPECT_FALSE(MayEnd(kSecond + EvictionGuard::kCountEveryNanos));
  EXPECT_EQ(counted_, 2);
  failing_ = 0;
  guard_.Recount();
  EXPECT_TRUE(MayEnd(kSecond + EvictionGuard::kCountEveryNanos));
}

TEST_F(EvictionGuardTest, ManyTtls_AreCountedForEightOfThem) {
  for (int i = 1; i <= 20; ++i) MayEnd(kSecond, i * kSecond);
  EXPECT_EQ(counted_, 8);
}

TEST_F(EvictionGuardTest, SessionsThatEndedWithinOneTtl_CountAsFailing) {
  guard_.Granted(kTtl);
  for (int i = 0; i < 30; ++i) guard_.Ended("", kSecond);
  EXPECT_FALSE(MayEnd(2 * kSecond));
  EXPECT_TRUE(MayEnd(kSecond + kTtl));
}

TEST_F(EvictionGuardTest, AHoldEndsAfterTenTtlsAndAtMostFiveMinutes) {
  EXPECT_EQ(guard_.HoldEnds(0, kTtl), 11 * kTtl);
  EXPECT_EQ(guard_.HoldEnds(0, 100 * kSecond), 400 * kSecond);
  EXPECT_EQ(EvictionGuard(true, {20, 0.15}, kSecond).HoldEnds(5, kTtl), 5 + kTtl + kSecond);
}

TEST_F(EvictionGuardTest, APeriodLastsFromTheFirstLeaseHeldUntilNoneIs) {
  guard_.Hold(100);
  guard_.Hold(200);
  guard_.CountRenewal();
  guard_.Unhold();
  EXPECT_EQ(guard_.TakeEnded(300).held, 0) << "one is held still";
  guard_.Unhold();
  const EvictionGuard::Period period = guard_.TakeEnded(400);
  EXPECT_EQ(period.held, 2);
  EXPECT_EQ(period.renewed, 1);
  EXPECT_EQ(period.begin, 100);
  EXPECT_EQ(period.end, 400);
  EXPECT_EQ(guard_.TakeEnded(500).held, 0) << "reported once";
  EXPECT_EQ(guard_.held(), 0);
  EXPECT_EQ(guard_.holds(), 2);
}

}  // namespace
}  // namespace failback
