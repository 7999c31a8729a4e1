#include "registry/store/leases.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/executor.h"
#include "retry/simulated_clock.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kTtl = absl::Seconds(10);

class LeasesTest : public ::testing::Test {
 protected:
  LeasesTest() {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(10);
    timer_ = HashedWheelTimer::Create(timer).value();
    Leases::Options options;
    options.timer = timer_.get();
    leases_ = std::make_unique<Leases>(options, [this](std::vector<std::string> ids) {
      ++told_;
      due_.insert(due_.end(), ids.begin(), ids.end());
    });
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
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
  EXPECT_EQ(leases_->Renew("a"), kTtl);
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
  EXPECT_EQ(leases_->Renew("a"), absl::ZeroDuration());
  leases_->Retry("a", absl::Seconds(1));
  EXPECT_EQ(leases_->Renew("a"), kTtl);
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
  EXPECT_EQ(leases_->Renew("a"), absl::ZeroDuration());
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
  EXPECT_EQ(leases_->Renew("a"), absl::ZeroDuration());
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
  EXPECT_EQ(leases_->Stats().leases, 17) << "15 % are believed";
  live(6, 5);
  EXPECT_EQ(leases_->Stats().leases, 17) << "five of twenty within ten seconds are not";
  EXPECT_EQ(leases_->Stats().held, 2);
  live(10, 5);
  EXPECT_EQ(leases_->Stats().leases, 15) << "two of seventeen are, when the three are long past";
}

// Runs tasks when it is told to.
class HeldExecutor final : public Executor {
 public:
  void Execute(absl::AnyInvocable<void() &&> task) override { tasks_.push_back(std::move(task)); }
  void Run() {
    for (auto& task : std::exchange(tasks_, {})) std::move(task)();
  }
  bool has_tasks() const { return !tasks_.empty(); }

 private:
  std::vector<absl::AnyInvocable<void() &&>> tasks_;
};

TEST(Leases, ARenewalWhileItsTimeoutIsOnTheWayIsATtlLikeAnyOther) {
  SimulatedClock clock;
  HeldExecutor executor;
  HashedWheelTimer::Options timer_options;
  timer_options.clock = &clock;
  timer_options.tick_duration = absl::Milliseconds(10);
  timer_options.executor = &executor;
  const auto timer = HashedWheelTimer::Create(timer_options).value();
  std::vector<std::string> due;
  Leases::Options options;
  options.timer = timer.get();
  Leases leases(options, [&](std::vector<std::string> ids) { due = std::move(ids); });
  const auto advance = [&](absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Milliseconds(10)) {
      executor.Run();
      clock.Advance(absl::Milliseconds(10));
    }
  };
  leases.Grant("a", kTtl);
  advance(kTtl);
  ASSERT_TRUE(executor.has_tasks()) << "it has run out, and nobody has heard of it yet";
  EXPECT_EQ(leases.Renew("a"), kTtl);
  advance(kTtl - absl::Milliseconds(20));
  EXPECT_THAT(due, IsEmpty());
  advance(absl::Milliseconds(50));
  EXPECT_THAT(due, ElementsAre("a"));
  executor.Run();
  leases.Stop();
}

TEST(Leases, StopWaitsForWhoIsBeingTold) {
  HashedWheelTimer::Options options;
  options.tick_duration = absl::Milliseconds(1);
  auto timer = HashedWheelTimer::Create(options).value();
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

}  // namespace
}  // namespace failback
