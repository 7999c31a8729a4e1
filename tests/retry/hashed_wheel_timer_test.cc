// The timer's contract, line by line, under a simulated clock. Threads: see
// hashed_wheel_timer_threads_test.cc.

#include "retry/hashed_wheel_timer.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/simulated_clock.h"
#include "tests/retry/timer_fixture.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(HashedWheelTimerTest, ATaskRunsAtTheFirstTickAtOrAfterItsDeadline) {
  auto timer = Create();
  const std::vector<std::pair<int64_t, int64_t>> delay_and_run = {
      {1, 100}, {99, 100}, {100, 100}, {101, 200}, {51199, 51200}, {51200, 51200}, {51201, 51300}};
  std::vector<int64_t> ran;
  for (const auto& [delay, expected] : delay_and_run) {
    timer
        ->NewTimeout([&] { ran.push_back(clock_.NowNanos() / kMillisecond); },
                     absl::Milliseconds(delay))
        .value();
  }
  clock_.Advance(absl::Minutes(2));
  ASSERT_EQ(ran.size(), delay_and_run.size());
  for (size_t i = 0; i < ran.size(); ++i) EXPECT_EQ(ran[i], delay_and_run[i].second);
  EXPECT_EQ(timer->Stats().worst_lateness, absl::ZeroDuration());
}

TEST_F(HashedWheelTimerTest, DelaysCountFromNowAndNotFromATick) {
  auto timer = Create();
  clock_.Advance(absl::Milliseconds(150));
  timer->NewTimeout(Note("a"), absl::Milliseconds(100)).value();
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre("a@300"));
}

TEST_F(HashedWheelTimerTest, DelaysOfZeroAndLessRunAtTheNextTick) {
  auto timer = Create();
  clock_.Advance(absl::Milliseconds(200));
  timer->NewTimeout(Note("zero"), absl::ZeroDuration()).value();
  timer->NewTimeout(Note("negative"), -absl::Hours(1)).value();
  timer->NewTimeout(Note("endless"), -absl::InfiniteDuration()).value();
  clock_.Advance(absl::ZeroDuration());
  EXPECT_THAT(ran_, IsEmpty());
  clock_.Advance(absl::Milliseconds(100));
  EXPECT_THAT(ran_, ElementsAre("zero@300", "negative@300", "endless@300"));
}

TEST_F(HashedWheelTimerTest, DelaysThatOverflowNeverRun) {
  auto timer = Create();
  clock_.Advance(absl::Hours(1));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<Timeout> timeouts;
  for (absl::Duration delay :
       {absl::InfiniteDuration(), absl::Hours(24 * 365 * 1000), absl::Seconds(std::abs(nan)),
        absl::Nanoseconds(std::numeric_limits<int64_t>::max())}) {
    timeouts.push_back(timer->NewTimeout(Note("never"), delay).value());
  }
  EXPECT_FALSE(clock_.AdvanceToNextTimer());
  clock_.Advance(absl::Hours(24 * 365 * 100));
  EXPECT_THAT(ran_, IsEmpty());
  EXPECT_EQ(timer->pending(), 4);
  // They are timeouts like others.
  EXPECT_TRUE(timeouts[0].Cancel());
  EXPECT_TRUE(timeouts[1].Reschedule(absl::Seconds(1)));
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ran_.size(), 1u);
  EXPECT_EQ(timer->Stop().value().size(), 2u);
}

TEST_F(HashedWheelTimerTest, NaNLikeDurationsAreInfinite) {
  auto timer = Create();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  timer->NewTimeout(Note("a"), absl::Seconds(-std::abs(nan))).value();
  const absl::Duration infinite = absl::InfiniteDuration();
  timer->NewTimeout(Note("b"), infinite + -infinite).value();
  timer->NewTimeout(Note("c"), absl::Seconds(1) * nan).value();
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(timer->pending() + static_cast<int64_t>(ran_.size()), 3);
}

TEST_F(HashedWheelTimerTest, TwoToTheFortyTicksOfSimulatedTime) {
  HashedWheelTimer::Options options = Options();
  options.tick_duration = absl::Milliseconds(1);
  auto timer = HashedWheelTimer::Create(options).value();
  constexpr int64_t kFar = int64_t{1} << 40;
  timer->NewTimeout(Note("far"), absl::Milliseconds(kFar)).value();
  int events = 0;
  while (clock_.AdvanceToNextTimer()) ++events;
  EXPECT_THAT(ran_, ElementsAre("far@" + std::to_string(kFar)));
  EXPECT_LE(events, 5);
}

TEST_F(HashedWheelTimerTest, OneTimerAMinuteAwayIsThreeWakeUps) {
  HashedWheelTimer::Options options = Options();
  options.tick_duration = absl::Milliseconds(1);
  for (int64_t start = 0; start < 1000; ++start) {
    SimulatedClock clock(start * 977 * kMillisecond);
    options.clock = &clock;
    auto timer = HashedWheelTimer::Create(options).value();
    clock.Advance(absl::Milliseconds(start * 131));
    timer->NewTimeout([] {}, absl::Seconds(60)).value();
    int wake_ups = 0;
    while (clock.AdvanceToNextTimer()) ++wake_ups;
    ASSERT_LE(wake_ups, 3) << "started at " << start;
    ASSERT_EQ(timer->Stats().fired, 1);
  }
}

TEST_F(HashedWheelTimerTest, EqualDeadlinesRunInInsertionOrder) {
  auto timer = Create();
  std::vector<int> ran;
  for (int i = 0; i < 1000; ++i) {
    timer->NewTimeout([&ran, i] { ran.push_back(i); }, absl::Seconds(77)).value();
  }
  clock_.Advance(absl::Seconds(77));
  ASSERT_EQ(ran.size(), 1000u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(ran[i], i);
}

// Timeout.

TEST_F(HashedWheelTimerTest, AnEmptyHandleDoesNothing) {
  Timeout timeout;
  EXPECT_FALSE(timeout);
  EXPECT_FALSE(timeout.Cancel());
  EXPECT_FALSE(timeout.Reschedule(absl::Seconds(1)));
  EXPECT_FALSE(timeout.IsCancelled());
  EXPECT_FALSE(timeout.IsExpired());
  timeout.Wait();
}

TEST_F(HashedWheelTimerTest, AHandleKnowsItsState) {
  auto timer = Create();
  Timeout run = timer->NewTimeout(Note("run"), absl::Seconds(1)).value();
  Timeout cancelled = timer->NewTimeout(Note("cancelled"), absl::Seconds(1)).value();
  EXPECT_TRUE(run);
  EXPECT_FALSE(run.IsExpired());
  EXPECT_FALSE(run.IsCancelled());
  EXPECT_TRUE(cancelled.Cancel());
  EXPECT_TRUE(cancelled.IsCancelled());
  EXPECT_FALSE(cancelled.IsExpired());
  EXPECT_FALSE(cancelled.Cancel());  // decided once
  EXPECT_FALSE(cancelled.Reschedule(absl::Seconds(1)));
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre("run@1000"));
  EXPECT_TRUE(run.IsExpired());
  EXPECT_FALSE(run.Cancel());
  EXPECT_FALSE(run.Reschedule(absl::Seconds(1)));
  EXPECT_FALSE(run.IsCancelled());
  EXPECT_TRUE(cancelled.IsCancelled());
}

TEST_F(HashedWheelTimerTest, AHandleMovesAndLeavesNothingBehind) {
  auto timer = Create();
  Timeout a = timer->NewTimeout(Note("a"), absl::Seconds(1)).value();
  Timeout b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_FALSE(a.Cancel());
  EXPECT_TRUE(b.Cancel());
  Timeout c = std::move(b);
  EXPECT_TRUE(c.IsCancelled());
  static_assert(!std::is_copy_constructible_v<Timeout>);
}

TEST_F(HashedWheelTimerTest, DroppingAHandleDoesNotCancel) {
  auto timer = Create();
  { Timeout timeout = timer->NewTimeout(Note("a"), absl::Seconds(1)).value(); }
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre("a@1000"));
}

TEST_F(HashedWheelTimerTest, ACancelledTaskIsFreedAtOnce) {
  auto timer = Create();
  auto held = std::make_shared<int>();
  Timeout timeout = timer->NewTimeout([held] {}, absl::Hours(1)).value();
  EXPECT_EQ(held.use_count(), 2);
  timeout.Cancel();
  EXPECT_EQ(held.use_count(), 1);
  timer->NewTimeout([held] {}, absl::Seconds(1)).value();
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(held.use_count(), 1);  // and so is one that has run
}

// Whatever ends a task, the destructors of what it holds may call the timer: no lock of it is held.
TEST_F(HashedWheelTimerTest, WhatATaskHoldsMayCallTheTimerWhenItIsDestroyed) {
  auto timer = Create();
  int destroyed = 0;
  const auto held = [&] {
    return std::shared_ptr<void>(nullptr, [&, timer = timer.get()](void*) {
      timer->Stats();
      ++destroyed;
    });
  };
  Timeout cancelled = timer->NewTimeout([held = held()] {}, absl::Seconds(1)).value();
  ASSERT_TRUE(cancelled.Cancel());
  EXPECT_EQ(destroyed, 1);
  timer->NewTimeout([held = held()] {}, absl::Seconds(1)).value();
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(destroyed, 2) << "it has run";
  timer->NewTimeout([held = held()] { throw 1; }, absl::Seconds(1)).value();
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(destroyed, 3) << "it has thrown";
  timer->NewTimeout([held = held()] {}, absl::Seconds(1)).value();
  timer->Stop().value().clear();
  EXPECT_EQ(destroyed, 4) << "Stop has returned it";
  EXPECT_FALSE(timer->NewTimeout([held = held()] {}, absl::Seconds(1)).ok());
  EXPECT_EQ(destroyed, 5) << "it was refused";
}

TEST_F(HashedWheelTimerTest, HandlesOutliveTheirTimer) {
  auto timer = Create();
  Timeout pending = timer->NewTimeout(Note("a"), absl::Seconds(1)).value();
  Timeout cancelled = timer->NewTimeout(Note("b"), absl::Seconds(1)).value();
  cancelled.Cancel();
  timer.reset();
  // Another timer takes over the memory. The old handles must not meet its entries.
  auto next = Create();
  Timeout other = next->NewTimeout(Note("other"), absl::Seconds(1)).value();
  EXPECT_FALSE(pending.Cancel());
  EXPECT_FALSE(pending.Reschedule(absl::Seconds(9)));
  EXPECT_TRUE(pending.IsExpired());
  EXPECT_TRUE(cancelled.IsCancelled());
  pending.Wait();
  clock_.Advance(absl::Seconds(2));
  EXPECT_THAT(ran_, ElementsAre("other@1000"));
}

TEST_F(HashedWheelTimerTest, RescheduleLaterEarlierAndAgain) {
  auto timer = Create();
  Timeout a = timer->NewTimeout(Note("a"), absl::Seconds(1)).value();
  Timeout b = timer->NewTimeout(Note("b"), absl::Seconds(100)).value();
  EXPECT_TRUE(a.Reschedule(absl::Seconds(50)));
  EXPECT_TRUE(b.Reschedule(absl::Seconds(2)));
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, IsEmpty());
  EXPECT_TRUE(b.Reschedule(absl::Seconds(3)));
  clock_.Advance(absl::Seconds(100));
  EXPECT_THAT(ran_, ElementsAre("b@4000", "a@50000"));
}

TEST_F(HashedWheelTimerTest, ALeaseRenewedForEverNeverExpires) {
  auto timer = Create();
  Timeout lease = timer->NewTimeout(Note("expired"), absl::Seconds(30)).value();
  for (int i = 0; i < 10000; ++i) {
    clock_.Advance(absl::Seconds(10));
    ASSERT_TRUE(lease.Reschedule(absl::Seconds(30)));
  }
  EXPECT_THAT(ran_, IsEmpty());
  clock_.Advance(absl::Seconds(30));
  EXPECT_THAT(ran_, ElementsAre("expired@100030000"));
}

// Bounds.

TEST_F(HashedWheelTimerTest, AboveTheBoundNewTimeoutRefuses) {
  HashedWheelTimer::Options options = Options();
  options.max_pending_timeouts = 2;
  auto timer = HashedWheelTimer::Create(options).value();
  Timeout a = timer->NewTimeout(Note("a"), absl::Seconds(1)).value();
  Timeout b = timer->NewTimeout(Note("b"), absl::Seconds(2)).value();
  const absl::Status refused = timer->NewTimeout(Note("c"), absl::Seconds(3)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_pending_timeouts"));
  // One that is cancelled, or has fired, no longer counts; not even while it runs.
  EXPECT_TRUE(b.Cancel());
  timer->NewTimeout(Note("d"), absl::Seconds(4)).value();
  EXPECT_FALSE(timer->NewTimeout(Note("e"), absl::Seconds(3)).ok());
  clock_.Advance(absl::Seconds(1));
  timer
      ->NewTimeout([&] { EXPECT_TRUE(timer->NewTimeout(Note("g"), absl::Milliseconds(100)).ok()); },
                   absl::Seconds(1))
      .value();
  clock_.Advance(absl::Seconds(9));
  EXPECT_THAT(ran_, ElementsAre("a@1000", "g@2100", "d@4000"));
  EXPECT_EQ(timer->pending(), 0);
}

TEST_F(HashedWheelTimerTest, BadOptionsAreErrorsThatNameTheField) {
  const auto refused = [&](const std::function<void(HashedWheelTimer::Options*)>& change) {
    HashedWheelTimer::Options options = Options();
    change(&options);
    const absl::Status status = HashedWheelTimer::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  using Options = HashedWheelTimer::Options;
  EXPECT_THAT(refused([](Options* o) { o->clock = nullptr; }), HasSubstr("clock"));
  EXPECT_THAT(refused([](Options* o) { o->tick_duration = absl::ZeroDuration(); }),
              AllOf(HasSubstr("tick_duration: 0"), HasSubstr("1us to 1h")));
  EXPECT_THAT(refused([](Options* o) { o->tick_duration = -absl::Seconds(1); }),
              HasSubstr("tick_duration: -1s"));
  EXPECT_THAT(refused([](Options* o) { o->tick_duration = absl::InfiniteDuration(); }),
              HasSubstr("tick_duration: inf"));
  EXPECT_THAT(refused([](Options* o) { o->tick_duration = absl::Nanoseconds(999); }),
              HasSubstr("tick_duration: 999ns"));
  EXPECT_THAT(refused([](Options* o) { o->ticks_per_wheel = 0; }),
              AllOf(HasSubstr("ticks_per_wheel: 0"), HasSubstr("1 to 65536")));
  EXPECT_THAT(refused([](Options* o) { o->ticks_per_wheel = -5; }), HasSubstr("-5"));
  EXPECT_THAT(refused([](Options* o) { o->ticks_per_wheel = 65537; }), HasSubstr("65537"));
  EXPECT_THAT(refused([](Options* o) { o->max_pending_timeouts = -1; }),
              HasSubstr("max_pending_timeouts: -1"));
}

// 512 slots of 100 ms, no bound, tasks on the timer's own thread, as Netty's.
TEST_F(HashedWheelTimerTest, DefaultsAreThoseOfItsModel) {
  const HashedWheelTimer::Options options;
  EXPECT_EQ(options.tick_duration, absl::Milliseconds(100));
  EXPECT_EQ(options.ticks_per_wheel, 512);
  EXPECT_EQ(options.max_pending_timeouts, 0);
  EXPECT_EQ(options.executor, nullptr);
}

TEST_F(HashedWheelTimerTest, EveryAllowedShapeWorks) {
  for (absl::Duration tick : {absl::Microseconds(1), absl::Microseconds(1.5), absl::Milliseconds(3),
                              absl::Seconds(1), absl::Hours(1)}) {
    for (int slots : {1, 2, 10, 512, 65536}) {
      SimulatedClock clock(12345);
      HashedWheelTimer::Options options = Options();
      options.clock = &clock;
      options.tick_duration = tick;
      options.ticks_per_wheel = slots;
      auto timer = HashedWheelTimer::Create(options).value();
      const absl::Duration delay = 123.7 * tick;
      const int64_t deadline = clock.NowNanos() + absl::ToInt64Nanoseconds(delay);
      int64_t ran_at = 0;
      timer->NewTimeout([&] { ran_at = clock.NowNanos(); }, delay).value();
      clock.Advance(200 * tick);
      EXPECT_GE(ran_at, deadline) << tick << " " << slots;
      EXPECT_LE(ran_at, deadline + absl::ToInt64Nanoseconds(tick)) << tick << " " << slots;
    }
  }
}

TEST_F(HashedWheelTimerTest, AnEmptyTaskIsRefused) {
  auto timer = Create();
  EXPECT_EQ(timer->NewTimeout(nullptr, absl::Seconds(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Driving.

TEST_F(HashedWheelTimerTest, ManualDriveRunsOnTheCallersThread) {
  class StandingClock final : public Clock {
   public:
    int64_t NowNanos() const override { return now; }
    absl::Time WallNow() const override { return absl::UnixEpoch(); }
    int64_t now = 0;
  } clock;
  HashedWheelTimer::Options options = Options();
  options.clock = &clock;
  options.manual_drive = true;
  auto timer = HashedWheelTimer::Create(options).value();
  EXPECT_EQ(timer->NextDueNanos(), std::nullopt);
  for (int i = 0; i < 10; ++i) timer->NewTimeout([] {}, absl::Milliseconds(250)).value();
  EXPECT_EQ(timer->NextDueNanos(), 300 * kMillisecond);
  EXPECT_EQ(timer->RunDue(), 0);
  clock.now = 299 * kMillisecond;
  EXPECT_EQ(timer->RunDue(), 0);
  clock.now = 300 * kMillisecond;
  EXPECT_EQ(timer->RunDue(3), 3);  // no more than asked for
  EXPECT_EQ(timer->pending(), 7);
  EXPECT_EQ(timer->RunDue(), 7);
  EXPECT_EQ(timer->NextDueNanos(), std::nullopt);
  clock.now = 100 * kMillisecond;  // a clock that goes back does no harm
  EXPECT_EQ(timer->RunDue(), 0);
}

TEST_F(HashedWheelTimerTest, AfterAJumpEachDueTaskStartsOnceInDueOrderAndLatenessIsReported) {
  auto timer = Create();
  for (int seconds : {5, 1, 3, 60, 2, 7200}) {
    timer->NewTimeout(Note(std::to_string(seconds)), absl::Seconds(seconds)).value();
  }
  clock_.Jump(absl::Hours(1));  // suspend, SIGSTOP
  EXPECT_THAT(ran_, IsEmpty());
  clock_.Advance(absl::ZeroDuration());
  EXPECT_THAT(ran_, ElementsAre("1@3600000", "2@3600000", "3@3600000", "5@3600000", "60@3600000"));
  EXPECT_EQ(timer->Stats().worst_lateness, absl::Hours(1) - absl::Seconds(1));
  EXPECT_EQ(timer->pending(), 1);
}

TEST_F(HashedWheelTimerTest, StatisticsAddUp) {
  auto timer = Create();
  std::vector<Timeout> timeouts;
  timeouts.reserve(100);
  for (int i = 0; i < 100; ++i) {
    timeouts.push_back(timer->NewTimeout([] {}, absl::Seconds(i)).value());
  }
  for (int i = 0; i < 100; i += 4) timeouts[i].Cancel();
  for (int i = 1; i < 100; i += 4) timeouts[i].Reschedule(absl::Hours(1));
  clock_.Advance(absl::Minutes(30));
  const HashedWheelTimer::Statistics stats = timer->Stats();
  EXPECT_EQ(stats.scheduled, 100);
  EXPECT_EQ(stats.cancelled, 25);
  EXPECT_EQ(stats.fired, 50);
  EXPECT_EQ(stats.pending, 25);
  EXPECT_EQ(stats.failed, 0);
}

// SimulatedClock.

TEST_F(HashedWheelTimerTest, TimersThatShareAClockRunInTimeOrder) {
  auto first = Create();
  HashedWheelTimer::Options options = Options();
  options.tick_duration = absl::Milliseconds(10);
  auto second = HashedWheelTimer::Create(options).value();
  second->NewTimeout(Note("second"), absl::Milliseconds(200)).value();
  first->NewTimeout(Note("first"), absl::Milliseconds(200)).value();
  second->NewTimeout(Note("early"), absl::Milliseconds(150)).value();
  first->NewTimeout(Note("late"), absl::Milliseconds(201)).value();
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre("early@150", "first@200", "second@200", "late@300"));
}

TEST_F(HashedWheelTimerTest, TheClockStopsWhereItIsTold) {
  auto timer = Create();
  timer
      ->NewTimeout([&] { timer->NewTimeout(Note("chained"), absl::Seconds(1)).value(); },
                   absl::Seconds(1))
      .value();
  const absl::Time wall = clock_.WallNow();
  clock_.Advance(absl::Milliseconds(1999));
  EXPECT_EQ(clock_.NowNanos(), 1999 * kMillisecond);
  EXPECT_THAT(ran_, IsEmpty());
  EXPECT_EQ(clock_.NextDeadlineNanos(), 2000 * kMillisecond);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(ran_, ElementsAre("chained@2000"));
  clock_.Advance(-absl::Seconds(1));
  EXPECT_EQ(clock_.NowNanos(), 2000 * kMillisecond);
  EXPECT_EQ(clock_.WallNow(), wall + absl::Seconds(2));
  clock_.Advance(absl::InfiniteDuration());
  EXPECT_EQ(clock_.NowNanos(), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace failback
