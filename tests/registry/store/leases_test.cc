#include "registry/store/leases.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "retry/simulated_clock.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr absl::Duration kTtl = absl::Seconds(10);

class LeasesTest : public ::testing::Test {
 protected:
  LeasesTest() {
    timer_ = NewTimer(&clock_, absl::Milliseconds(10));
    Leases::Options options;
    options.timer = timer_.get();
    leases_ = std::make_unique<Leases>(options, [this](std::vector<std::string> ids) {
      ++told_;
      due_.insert(due_.end(), ids.begin(), ids.end());
    });
  }

  ~LeasesTest() override { SetLogSink(LogLevel::kWarning, nullptr); }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::vector<std::string> lines_;  // of the log, once it is taken
  std::vector<std::string> due_;
  int told_ = 0;
  std::unique_ptr<Leases> leases_;
};

TEST_F(LeasesTest, RunsOutOnce) {
  leases_->Grant("a", kTtl);
  clock_.Advance(kTtl - absl::Nanoseconds(1));
  EXPECT_FALSE(leases_->BeginEnd("a"));
  clock_.Advance(absl::Milliseconds(10));
  EXPECT_THAT(due_, ElementsAre("a"));
  EXPECT_TRUE(leases_->BeginEnd("a"));
  EXPECT_FALSE(leases_->BeginEnd("a"));
  leases_->Drop("a");
  clock_.Advance(absl::Hours(1));
  EXPECT_THAT(due_, ElementsAre("a"));
  EXPECT_EQ(leases_->Stats().leases, 0);
}

TEST_F(LeasesTest, ARenewalBetweenRunningOutAndTheEndCounts) {
  leases_->Grant("a", kTtl);
  clock_.Advance(absl::Seconds(11));
  EXPECT_THAT(due_, ElementsAre("a"));
  EXPECT_EQ(leases_->Renew("a").ttl, kTtl);
  EXPECT_FALSE(leases_->BeginEnd("a"));
  clock_.Advance(absl::Seconds(9));
  EXPECT_THAT(due_, ElementsAre("a"));
  clock_.Advance(absl::Seconds(2));
  EXPECT_THAT(due_, ElementsAre("a", "a"));
}

TEST_F(LeasesTest, NoRenewalOnceTheEndHasBegun) {
  leases_->Grant("a", kTtl);
  clock_.Advance(absl::Seconds(11));
  EXPECT_TRUE(leases_->BeginEnd("a"));
  EXPECT_EQ(leases_->Renew("a").ttl, absl::ZeroDuration());
  leases_->Retry("a", absl::Seconds(1));
  EXPECT_EQ(leases_->Renew("a").ttl, kTtl);
}

TEST_F(LeasesTest, RetryIsDueAgainAfterItsDelay) {
  leases_->Grant("a", kTtl);
  clock_.Advance(absl::Seconds(11));
  EXPECT_TRUE(leases_->BeginEnd("a"));
  leases_->Retry("a", absl::Seconds(2));
  clock_.Advance(absl::Milliseconds(1900));
  EXPECT_THAT(due_, ElementsAre("a"));
  clock_.Advance(absl::Milliseconds(200));
  EXPECT_THAT(due_, ElementsAre("a", "a"));
  EXPECT_TRUE(leases_->BeginEnd("a"));
  EXPECT_EQ(leases_->Stats().pauses, 0);
}

TEST_F(LeasesTest, UnknownSessionsAreNotRenewed) {
  EXPECT_EQ(leases_->Renew("a").ttl, absl::ZeroDuration());
  EXPECT_FALSE(leases_->BeginEnd("a"));
  leases_->Drop("a");
  leases_->Retry("a", absl::Seconds(1));
  clock_.Advance(absl::Hours(1));
  EXPECT_THAT(due_, IsEmpty());
}

TEST_F(LeasesTest, NothingIsPendingWithoutLeases) {
  leases_->Grant("a", kTtl);
  leases_->Drop("a");
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(LeasesTest, LeasesThatRunOutTogetherAreToldOfTogether) {
  leases_->SetGuard(false);
  constexpr int kMany = 1000;
  for (int i = 0; i < kMany; ++i) leases_->Grant(absl::StrCat(i), kTtl);
  clock_.Advance(kTtl + absl::Milliseconds(20));
  EXPECT_THAT(due_, SizeIs(kMany));
  EXPECT_EQ(told_, 2) << "the first, and all that followed";
  for (const std::string& id : due_) {
    EXPECT_TRUE(leases_->BeginEnd(id));
    leases_->Drop(id);
  }
  leases_->Grant("later", kTtl);
  clock_.Advance(kTtl + absl::Milliseconds(10));
  EXPECT_EQ(told_, 3) << "at once, alone";
}

TEST_F(LeasesTest, NothingIsToldAfterStop) {
  leases_->Grant("a", kTtl);
  leases_->Stop();
  clock_.Advance(absl::Hours(1));
  EXPECT_THAT(due_, IsEmpty());
  EXPECT_EQ(leases_->Renew("a").ttl, absl::ZeroDuration());
}

TEST_F(LeasesTest, WhatTheGuardHoldsIsNotEnded) {
  for (int i = 0; i < 20; ++i) leases_->Grant(absl::StrCat(i), kTtl);
  clock_.Advance(kTtl + absl::Milliseconds(20));
  ASSERT_EQ(leases_->Stats().held, 20);
  EXPECT_THAT(due_, IsEmpty());
  EXPECT_FALSE(leases_->BeginEnd("7"));
  leases_->SetGuard(false);
  EXPECT_THAT(due_, SizeIs(20));
  EXPECT_TRUE(leases_->BeginEnd("7"));
}

TEST_F(LeasesTest, TheLogHasALineWhenTheGuardBeginsToHoldAndOneWhenItHoldsNoneAnyMore) {
  SetLogSink(LogLevel::kInfo, [this](LogLevel, const std::string& event, const LogFields& fields) {
    std::string line = event;
    for (const auto& [name, value] : fields) absl::StrAppend(&line, " ", name, "=", value);
    lines_.push_back(line);
  });
  const std::string first =
      "too many sessions would expire at once: their instances are kept until they renew "
      "not_renewed=20 sessions=25";
  for (int i = 0; i < 25; ++i) leases_->Grant(absl::StrCat(i), kTtl);
  clock_.Advance(absl::Seconds(8));
  for (int i = 20; i < 25; ++i) leases_->Renew(absl::StrCat(i));
  clock_.Advance(absl::Seconds(3));
  ASSERT_EQ(leases_->Stats().held, 20);
  EXPECT_THAT(lines_, ElementsAre(first));
  for (int i = 0; i < 18; ++i) leases_->Renew(absl::StrCat(i));
  leases_->Grant("18", kTtl);  // opened again
  EXPECT_THAT(lines_, SizeIs(1)) << "one is held still";
  leases_->Drop("19");
  EXPECT_THAT(
      lines_,
      ElementsAre(first, StartsWith("no session is held any more held=20 renewed=19 for=")));

  lines_.clear();
  clock_.Advance(2 * kTtl);
  ASSERT_EQ(leases_->Stats().held, 24);
  leases_->Release();
  EXPECT_THAT(lines_,
              ElementsAre(StartsWith("too many sessions"),
                          StartsWith("no session is held any more held=24 renewed=0 for=")));
}

TEST_F(LeasesTest, NothingIsHeldForLongerThanTheLongestHold) {
  for (int i = 0; i < 40; ++i) leases_->Grant(absl::StrCat(i), kTtl);
  // Ten of forty stop for good.
  const auto live = [&](absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      for (int i = 10; i < 40; ++i) leases_->Renew(absl::StrCat(i));
    }
  };
  live(kTtl + absl::Seconds(1));
  EXPECT_EQ(leases_->Stats().held, 10);
  live(10 * kTtl - absl::Seconds(2));
  EXPECT_EQ(leases_->Stats().held, 10);
  EXPECT_THAT(due_, IsEmpty());
  live(absl::Seconds(3));
  EXPECT_EQ(leases_->Stats().held, 0) << "after ten TTLs the session ends whatever the share";
  EXPECT_THAT(due_, SizeIs(10));
  for (const std::string& id : due_) EXPECT_TRUE(leases_->BeginEnd(id));
}

TEST_F(LeasesTest, TheLongestHoldIsAtMostFiveMinutesUnlessConfigured) {
  for (int i = 0; i < 20; ++i) leases_->Grant(absl::StrCat(i), absl::Minutes(10));
  clock_.Advance(absl::Minutes(14));
  EXPECT_EQ(leases_->Stats().held, 20);
  clock_.Advance(absl::Minutes(3));
  EXPECT_EQ(leases_->Stats().held, 0);

  Leases::Options options;
  options.timer = timer_.get();
  options.guard_longest_hold = absl::Seconds(1);
  std::vector<std::string> due;
  Leases other(options, [&](std::vector<std::string> ids) {
    due.insert(due.end(), ids.begin(), ids.end());
  });
  for (int i = 0; i < 20; ++i) other.Grant(absl::StrCat(i), absl::Minutes(10));
  clock_.Advance(absl::Minutes(10) + absl::Milliseconds(500));
  EXPECT_EQ(other.Stats().held, 20);
  clock_.Advance(absl::Minutes(2));
  EXPECT_EQ(other.Stats().held, 0);
  EXPECT_THAT(due, SizeIs(20));
}

TEST_F(LeasesTest, NoOwnerMakesItHoldForOthers) {
  for (int i = 0; i < 20; ++i) leases_->Grant(absl::StrCat(i, ".fleet"), kTtl);
  for (int i = 0; i < 300; ++i) leases_->Grant(absl::StrCat(i, ".idler"), kTtl);
  for (int second = 0; second < 15; ++second) {
    clock_.Advance(absl::Seconds(1));
    for (int i = 2; i < 20; ++i) leases_->Renew(absl::StrCat(i, ".fleet"));
  }
  EXPECT_THAT(due_, ::testing::UnorderedElementsAre("0.fleet", "1.fleet"));
  EXPECT_EQ(leases_->Stats().held, 300) << "its own are held";
}

// As failing as its owner's others: what counts is whose it was, after its end too.
TEST_F(LeasesTest, WhatHasEndedIsItsOwnersStill) {
  for (int i = 0; i < 20; ++i) leases_->Grant(absl::StrCat(i, ".fleet"), kTtl);
  for (int i = 0; i < 200; ++i) leases_->Grant(absl::StrCat(i, ".idler"), kTtl);
  const auto live = [&](int seconds, int silent) {
    for (int second = 0; second < seconds; ++second) {
      clock_.Advance(absl::Seconds(1));
      for (int i = silent; i < 20; ++i) leases_->Renew(absl::StrCat(i, ".fleet"));
    }
  };
  live(5, 0);
  live(6, 1);
  ASSERT_EQ(leases_->Stats().held, 200);
  ASSERT_EQ(leases_->Release(), 200);
  for (int i = 0; i < 100; ++i) {
    const std::string id = absl::StrCat(i, ".idler");
    ASSERT_TRUE(leases_->BeginEnd(id));
    leases_->Drop(id);
  }
  due_.clear();
  live(5, 1);
  // Neither the hundred that have ended nor the hundred that go on failing hold another's.
  EXPECT_THAT(due_, ElementsAre("0.fleet"));
  EXPECT_EQ(leases_->Stats().held, 0);
}

TEST_F(LeasesTest, ReleaseEndsWhatIsHeldNowAndTheGuardGoesOn) {
  for (int i = 0; i < 20; ++i) leases_->Grant(absl::StrCat(i), kTtl);
  clock_.Advance(kTtl + absl::Milliseconds(20));
  ASSERT_EQ(leases_->Stats().held, 20);
  EXPECT_THAT(leases_->Held(), SizeIs(20));
  EXPECT_EQ(leases_->Renew("3").ttl, kTtl);
  EXPECT_EQ(leases_->Release("alice"), 19);
  EXPECT_THAT(due_, SizeIs(19));
  EXPECT_EQ(leases_->Release(), 0);
  // One whose end could not be written is not held again.
  EXPECT_TRUE(leases_->BeginEnd("7"));
  leases_->Retry("7", absl::Seconds(1));
  clock_.Advance(absl::Seconds(2));
  const std::optional<LeaseEnd> end = leases_->BeginEnd("7");
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->cause, LeaseEnd::Cause::kReleased) << "nor forgotten why it ends";
  EXPECT_EQ(end->by.view(), "alice");
  EXPECT_TRUE(leases_->Stats().guard);
  clock_.Advance(kTtl);
  EXPECT_EQ(leases_->Stats().held, 1) << "3, which runs out among so many that do";
}

TEST_F(LeasesTest, ARenewalAfterAReleaseMakesItsNextEndAnOrdinaryOne) {
  for (int i = 0; i < 20; ++i) leases_->Grant(absl::StrCat(i), kTtl);
  clock_.Advance(kTtl + absl::Milliseconds(20));
  ASSERT_EQ(leases_->Release("alice"), 20);
  EXPECT_EQ(leases_->Renew("7").ttl, kTtl);
  for (int i = 0; i < 20; ++i) {
    if (i != 7) leases_->Drop(absl::StrCat(i));
  }
  clock_.Advance(kTtl + absl::Milliseconds(20));
  EXPECT_EQ(leases_->BeginEnd("7"), LeaseEnd());
}

// Losses that follow one another within a TTL are as many as if they came at once.
TEST_F(LeasesTest, TheGuardCountsWhatHasEndedWithinATtl) {
  for (int i = 0; i < 20; ++i) leases_->Grant(absl::StrCat(i), kTtl);
  // 0, 1 and 2 are silent from the beginning, 3 and 4 after six seconds, the others never.
  const auto live = [&](int seconds, int silent) {
    for (int second = 0; second < seconds; ++second) {
      clock_.Advance(absl::Seconds(1));
      for (int i = silent; i < 20; ++i) leases_->Renew(absl::StrCat(i));
      for (const std::string& id : std::exchange(due_, {})) {
        if (leases_->BeginEnd(id)) leases_->Drop(id);
      }
    }
  };
  live(6, 3);
  live(5, 5);
  EXPECT_EQ(leases_->Stats().leases, 17) << "15 % are accepted";
  live(6, 5);
  EXPECT_EQ(leases_->Stats().leases, 17) << "five of twenty within ten seconds are not";
  EXPECT_EQ(leases_->Stats().held, 2);
  live(10, 5);
  EXPECT_EQ(leases_->Stats().leases, 15) << "two of seventeen are, when the three are long past";
}

// Simulated time that is held up once, by the first that asks what time it is.
class InterruptedClock final : public Clock {
 public:
  int64_t NowNanos() const override {
    if (auto interrupt = std::exchange(interrupt_, nullptr)) interrupt();
    return time_.NowNanos();
  }
  absl::Time WallNow() const override { return time_.WallNow(); }
  bool DrivesTimers() const override { return true; }
  void Attach(const std::shared_ptr<ClockDriven>& driven) override { time_.Attach(driven); }
  void Detach(const ClockDriven* driven) override { time_.Detach(driven); }

  void InterruptNextLook(std::function<void()> interrupt) { interrupt_ = std::move(interrupt); }
  void Advance(absl::Duration duration) { time_.Advance(duration); }

 private:
  SimulatedClock time_;
  mutable std::function<void()> interrupt_;
};

TEST(Leases, ARenewalWhileItsTimeoutBeginsIsATtlLikeAnyOther) {
  InterruptedClock clock;
  const auto timer = NewTimer(&clock, absl::Milliseconds(10));
  std::vector<std::string> due;
  Leases::Options options;
  options.timer = timer.get();
  Leases leases(options, [&](std::vector<std::string> ids) { due = std::move(ids); });
  leases.Grant("a", kTtl);
  clock.Advance(absl::Seconds(1));
  leases.Renew("a");  // from here on no other timeout is at the same time
  clock.Advance(kTtl - absl::Milliseconds(20));

  // The renewal has the lock when the time is up, and the timeout has to wait for it.
  const int64_t before = timer->Stats().fired;
  std::thread time;
  clock.InterruptNextLook([&] {
    time = std::thread([&] { clock.Advance(absl::Milliseconds(40)); });
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (timer->Stats().fired == before && absl::Now() < deadline) std::this_thread::yield();
  });
  EXPECT_EQ(leases.Renew("a").ttl, kTtl);
  time.join();
  EXPECT_GT(timer->Stats().fired, before);
  EXPECT_THAT(due, IsEmpty());
  clock.Advance(kTtl - absl::Milliseconds(50));
  EXPECT_THAT(due, IsEmpty());
  clock.Advance(absl::Milliseconds(100));
  EXPECT_THAT(due, ElementsAre("a"));
}

TEST(Leases, StopWaitsForWhoIsBeingTold) {
  auto timer = NewTimer(absl::Milliseconds(1));
  absl::Notification told;
  absl::Notification go_on;
  std::atomic<bool> left{false};
  Leases::Options lease_options;
  lease_options.timer = timer.get();
  Leases leases(lease_options, [&](const std::vector<std::string>&) {
    told.Notify();
    go_on.WaitForNotification();
    left = true;
  });
  leases.Grant("a", absl::Milliseconds(100));
  told.WaitForNotification();
  std::thread release([&] { go_on.Notify(); });
  leases.Stop();
  EXPECT_TRUE(left);
  release.join();
}

TEST_F(LeasesTest, WhoOpenedASessionIsRememberedAndAnotherProcessIsTold) {
  leases_->Grant("a", kTtl, 1);
  EXPECT_EQ(leases_->Renew("a", 1).process, 1);
  EXPECT_FALSE(leases_->Renew("a", 1).contested);
  EXPECT_EQ(leases_->Renew("a", 2).process, 1);
  EXPECT_FALSE(leases_->Renew("a", 2).contested) << "once";
  leases_->Grant("a", kTtl, 2);
  EXPECT_TRUE(leases_->Renew("a", 1).contested);
  EXPECT_EQ(leases_->Renew("a", 1).process, 2);
  // Clients that do not say, and a registry that has started again.
  EXPECT_FALSE(leases_->Renew("a").contested);
  leases_->Grant("b", kTtl);
  EXPECT_EQ(leases_->Renew("b").process, 0);
  EXPECT_EQ(leases_->Renew("b", 3).process, 3);
  EXPECT_EQ(leases_->Renew("b", 4).process, 3);
}

}  // namespace
}  // namespace failback
