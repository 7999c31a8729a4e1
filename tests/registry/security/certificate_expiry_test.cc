#include "registry/security/certificate_expiry.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "tests/registry/security/test_authority.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kDay = absl::Hours(24);

CertificateTimes Living(absl::Duration lived, absl::Duration left, absl::Time now) {
  return {now - lived, now + left};
}

TEST(CertificateTimesTest, SoonIsTwoWeeksAndLessThanAThird) {
  const absl::Time now = absl::UnixEpoch() + 20000 * kDay;
  EXPECT_FALSE(CertificateTimes().EndsSoon(now));
  EXPECT_FALSE(Living(350 * kDay, 15 * kDay, now).EndsSoon(now));
  EXPECT_TRUE(Living(350 * kDay, 13 * kDay, now).EndsSoon(now));
  EXPECT_FALSE(Living(absl::Minutes(30), absl::Minutes(30), now).EndsSoon(now));
  EXPECT_TRUE(Living(absl::Minutes(50), absl::Minutes(10), now).EndsSoon(now));
  EXPECT_TRUE(Living(kDay, -kDay / 2, now).EndsSoon(now));
}

class CertificateWatchTest : public ::testing::Test {
 protected:
  CertificateWatchTest() {
    SetLogSink(LogLevel::kInfo,
               [this](LogLevel, const std::string& event, const LogFields& fields) {
                 log_.push_back(FormatLogLine(event, fields));
               });
  }
  ~CertificateWatchTest() override { SetLogSink(LogLevel::kInfo, nullptr); }

  // A certificate of a year that has `left` to go.
  std::string Ending(absl::Duration left) const {
    TestAuthority::Request request;
    request.begins = left - 365 * kDay;
    request.ends = left;
    return authority_.Issue(request).cert;
  }

  const TestAuthority authority_{"ca"};
  const absl::Time now_ = absl::Now();
  std::vector<std::string> log_;
  CertificateWatch watch_;
};

TEST_F(CertificateWatchTest, WhatEndsSoonIsCountedListedAndLoggedOnce) {
  EXPECT_EQ(watch_.Look(now_).first, absl::InfiniteFuture());
  const std::string week = Ending(7 * kDay), day = Ending(kDay), long_time = Ending(100 * kDay);
  for (int i = 0; i < 3; ++i) {
    watch_.Note("spiffe://a", absl::StrCat("ipv4:10.0.0.1:", 4000 + i), week, now_);
    watch_.Note("spiffe://b", "ipv6:[::1]:80", day, now_);
    watch_.Note("spiffe://c", "unix:/run/x", long_time, now_);
  }
  const CertificateWatch::Summary summary = watch_.Look(now_);
  EXPECT_EQ(summary.seen, 3);
  EXPECT_EQ(summary.ending, 2);
  EXPECT_NEAR(absl::ToDoubleHours(summary.first - now_), 24, 1);
  ASSERT_EQ(summary.soonest.size(), 2u);
  EXPECT_EQ(summary.soonest[0].name, "spiffe://b");
  EXPECT_EQ(summary.soonest[0].host, "[::1]");
  EXPECT_EQ(summary.soonest[1].host, "10.0.0.1");
  EXPECT_THAT(log_, ElementsAre(HasSubstr("client=spiffe://a host=10.0.0.1"),
                                HasSubstr("client=spiffe://b host=[::1]")));
}

TEST_F(CertificateWatchTest, AHostThatShowsANewOneIsWellWhateverItsOlderConnectionsHave) {
  const std::string old = Ending(kDay), renewed = Ending(300 * kDay);
  watch_.Note("a", "ipv4:10.0.0.1:1", old, now_);
  watch_.Note("a", "ipv4:10.0.0.2:1", old, now_);
  for (int i = 0; i < 3; ++i) {
    watch_.Note("a", "ipv4:10.0.0.1:2", renewed, now_);
    watch_.Note("a", "ipv4:10.0.0.1:1", old, now_);
  }
  const CertificateWatch::Summary summary = watch_.Look(now_);
  EXPECT_EQ(summary.seen, 2);
  ASSERT_EQ(summary.ending, 1);
  EXPECT_EQ(summary.soonest[0].host, "10.0.0.2");
}

TEST_F(CertificateWatchTest, WhatIsNotSeenForLongIsForgotten) {
  const std::string cert = Ending(kDay);
  watch_.Note("a", "ipv4:10.0.0.1:1", cert, now_);
  watch_.Note("b", "ipv4:10.0.0.1:1", cert, now_ + absl::Minutes(90));
  EXPECT_EQ(watch_.Look(now_ + absl::Minutes(119)).seen, 2);
  EXPECT_EQ(watch_.Look(now_ + absl::Minutes(121)).seen, 1);
}

TEST_F(CertificateWatchTest, MemoryIsBounded) {
  const std::string cert = Ending(100 * kDay);
  CertificateWatch watch(/*most=*/20);
  const auto note = [&](int i, absl::Time now) {
    watch.Note(absl::StrCat(i, std::string(1000, 'x')), "ipv4:10.0.0.1:1", cert, now);
  };
  for (int i = 0; i < 30; ++i) note(i, now_);
  EXPECT_EQ(watch.Look(now_).seen, 20);
  note(0, now_ + absl::Hours(3));
  note(25, now_ + absl::Hours(3));
  EXPECT_EQ(watch.Look(now_ + absl::Hours(3)).seen, 2) << "there is room again";
}

TEST_F(CertificateWatchTest, OnesOwnIsLoggedOnceADay) {
  OwnCertificateLog own("server");
  const CertificateTimes times = Living(350 * kDay, 3 * kDay, now_);
  own.Look(Living(kDay, 300 * kDay, now_), now_);
  EXPECT_TRUE(log_.empty());
  own.Look(times, now_);
  own.Look(times, now_ + absl::Hours(23));
  EXPECT_THAT(log_, ElementsAre(HasSubstr("certificate ends soon of=server")));
  own.Look(times, now_ + absl::Hours(25));
  EXPECT_EQ(log_.size(), 2u);
}

TEST_F(CertificateWatchTest, TheEndOfOnesOwnIsLoggedAtOnceAndThenOnceADay) {
  OwnCertificateLog own("upstream");
  const CertificateTimes times = Living(350 * kDay, absl::Hours(1), now_);
  own.Look(times, now_);
  own.Look(times, now_ + absl::Minutes(59));
  ASSERT_EQ(log_.size(), 1u);
  own.Look(times, now_ + absl::Hours(1));
  own.Look(times, now_ + absl::Hours(2));
  ASSERT_EQ(log_.size(), 2u);
  EXPECT_THAT(log_[1], HasSubstr("certificate has ended: new connections are refused of=upstream"));
  own.Look(times, now_ + absl::Hours(26));
  EXPECT_EQ(log_.size(), 3u);
}

}  // namespace
}  // namespace failback
