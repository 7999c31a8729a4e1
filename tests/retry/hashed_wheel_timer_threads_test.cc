// The timer with real threads and real time.

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/retry/timer_threads.h"

namespace failback {
namespace {

TEST(HashedWheelTimerThreadsTest, NoTaskIsEarly) {
  auto timer = Create();
  Clock* const clock = Clock::Real();
  std::mt19937 random(1);
  constexpr int kTimers = 5000;
  std::atomic<int> ran{0};
  std::atomic<int> early{0};
  OnceEvent done;
  for (int i = 0; i < kTimers; ++i) {
    const absl::Duration delay = absl::Microseconds(random() % 100000);
    const int64_t deadline = clock->NowNanos() + absl::ToInt64Nanoseconds(delay);
    timer
        ->NewTimeout(
            [&, deadline] {
              if (clock->NowNanos() < deadline) ++early;
              if (++ran == kTimers) done.Happen();
            },
            delay)
        .value();
  }
  ASSERT_TRUE(done.Await());
  EXPECT_EQ(early, 0);
}

// How many threads of this process have the name.
int ThreadsNamed(const std::string& name) {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    count += comm == name;
  }
  return count;
}

TEST(HashedWheelTimerThreadsTest, TheThreadStartsWithTheFirstTimeout) {
  HashedWheelTimer::Options options;
  options.name = "lazy-timer";
  auto timer = HashedWheelTimer::Create(options).value();
  EXPECT_EQ(ThreadsNamed("lazy-timer"), 0);
  OnceEvent ran;
  timer->NewTimeout([&] { ran.Happen(); }, absl::ZeroDuration()).value();
  ASSERT_TRUE(ran.Await());
  EXPECT_EQ(ThreadsNamed("lazy-timer"), 1);
  timer->NewTimeout([] {}, absl::Hours(1)).value();
  EXPECT_EQ(ThreadsNamed("lazy-timer"), 1);
  timer->Stop().value();
  EXPECT_EQ(ThreadsNamed("lazy-timer"), 0);
}

TEST(HashedWheelTimerThreadsTest, AnEarlierTimeoutWakesTheDriver) {
  auto timer = Create();
  Timeout far = timer->NewTimeout([] {}, absl::Hours(100)).value();
  OnceEvent first, second, third;
  timer->NewTimeout([&] { first.Happen(); }, absl::Milliseconds(20)).value();
  ASSERT_TRUE(first.Await());
  // The driver sleeps for hours now. So does it after the next one.
  timer->NewTimeout([&] { second.Happen(); }, absl::Milliseconds(1)).value();
  ASSERT_TRUE(second.Await());
  far = timer->NewTimeout([&] { third.Happen(); }, absl::Hours(100)).value();
  EXPECT_TRUE(far.Reschedule(absl::Milliseconds(1)));
  ASSERT_TRUE(third.Await());
}

TEST(HashedWheelTimerThreadsTest, WaitIsABarrier) {
  ThreadPool pool(2);
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
    auto timer = Create(executor);
    for (int round = 0; round < 100; ++round) {
      OnceEvent started;
      std::atomic<bool> proceed{false};
      std::atomic<bool> ended{false};
      Timeout timeout = timer
                            ->NewTimeout(
                                [&] {
                                  started.Happen();
                                  while (!proceed) std::this_thread::yield();
                                  ended = true;
                                },
                                absl::ZeroDuration())
                            .value();
      ASSERT_TRUE(started.Await());
      EXPECT_FALSE(timeout.Cancel());
      EXPECT_TRUE(timeout.IsExpired());
      std::thread release([&] { proceed = true; });
      timeout.Wait();
      EXPECT_TRUE(ended);
      release.join();
    }
  }
}

TEST(HashedWheelTimerThreadsTest, ATaskThatHangsHoldsUpNoOtherOnAnExecutor) {
  ThreadPool pool(2);
  auto timer = Create(&pool);
  OnceEvent release, other;
  timer->NewTimeout([&] { release.Await(); }, absl::ZeroDuration()).value();
  timer->NewTimeout([&] { other.Happen(); }, absl::Milliseconds(5)).value();
  EXPECT_TRUE(other.Await());
  release.Happen();
}

TEST(HashedWheelTimerThreadsTest, WhatWaitsInTheExecutorsQueueCanBeCancelledAndRescheduled) {
  OnceEvent started, release, moved_ran;
  std::atomic<bool> cancelled_ran{false};
  std::atomic<int> moved_runs{0};
  CountingPool pool;
  auto timer = Create(&pool);
  timer
      ->NewTimeout(
          [&] {
            started.Happen();
            release.Await();
          },
          absl::ZeroDuration())
      .value();
  ASSERT_TRUE(started.Await());
  Timeout cancelled =
      timer->NewTimeout([&] { cancelled_ran = true; }, absl::ZeroDuration()).value();
  Timeout moved = timer
                      ->NewTimeout(
                          [&] {
                            ++moved_runs;
                            moved_ran.Happen();
                          },
                          absl::ZeroDuration())
                      .value();
  pool.AwaitExecuted(3);
  EXPECT_FALSE(cancelled.IsExpired());
  EXPECT_TRUE(cancelled.Cancel());
  EXPECT_TRUE(moved.Reschedule(absl::Milliseconds(20)));
  release.Happen();
  ASSERT_TRUE(moved_ran.Await());
  EXPECT_FALSE(cancelled_ran);
  timer->Stop().value();
  EXPECT_EQ(moved_runs, 1);
}

TEST(HashedWheelTimerThreadsTest, StopReturnsWhatWaitsInTheExecutorsQueue) {
  OnceEvent started, release;
  std::atomic<int> ran{0};
  CountingPool pool;
  auto timer = Create(&pool);
  timer
      ->NewTimeout(
          [&] {
            started.Happen();
            release.Await();
            ++ran;
          },
          absl::ZeroDuration())
      .value();
  ASSERT_TRUE(started.Await());
  for (int i = 0; i < 10; ++i) timer->NewTimeout([&] { ++ran; }, absl::ZeroDuration()).value();
  pool.AwaitExecuted(11);
  std::thread releaser([&] { release.Happen(); });
  std::vector<TimerTask> tasks = timer->Stop().value();
  const int ran_at_stop = ran;
  releaser.join();
  timer.reset();
  EXPECT_GE(ran_at_stop, 1);  // the one that was running has ended
  EXPECT_EQ(tasks.size() + ran_at_stop, 11u);
}

TEST(HashedWheelTimerThreadsTest, StopWaitsForTheRunningTask) {
  auto timer = Create();
  OnceEvent started;
  std::atomic<bool> proceed{false};
  std::atomic<bool> ended{false};
  timer
      ->NewTimeout(
          [&] {
            started.Happen();
            while (!proceed) std::this_thread::yield();
            ended = true;
          },
          absl::ZeroDuration())
      .value();
  ASSERT_TRUE(started.Await());
  std::thread release([&] { proceed = true; });
  EXPECT_TRUE(timer->Stop().value().empty());
  EXPECT_TRUE(ended);
  release.join();
}

TEST(HashedWheelTimerThreadsTest, ATaskMayDestroyItsTimer) {
  for (int round = 0; round < 100; ++round) {
    HashedWheelTimer* timer = Create().release();
    OnceEvent ended;
    auto held = std::make_shared<int>();
    timer
        ->NewTimeout(
            [&, held] {
              delete timer;
              ended.Happen();
            },
            absl::ZeroDuration())
        .value();
    ASSERT_TRUE(ended.Await());
  }
}

}  // namespace
}  // namespace failback
