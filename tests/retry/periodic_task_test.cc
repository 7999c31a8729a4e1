#include "retry/periodic_task.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/executor.h"
#include "retry/simulated_clock.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PeriodicTaskTest : public ::testing::Test {
 protected:
  std::unique_ptr<HashedWheelTimer> Create() {
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    options.log = [](const std::string&) {};
    return HashedWheelTimer::Create(options).value();
  }
  int64_t NowSeconds() const { return clock_.NowNanos() / 1000000000; }

  SimulatedClock clock_;
};

TEST_F(PeriodicTaskTest, RunsEveryPeriodUntilStopped) {
  auto timer = Create();
  std::vector<int64_t> ran;
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(10), [&] {
                ran.push_back(NowSeconds());
              }).value();
  clock_.Advance(absl::Seconds(35));
  EXPECT_THAT(ran, ElementsAre(10, 20, 30));
  EXPECT_EQ(task->runs(), 3);
  task->Stop();
  task->Stop();
  EXPECT_EQ(timer->pending(), 0);  // by flag and timeout both
  clock_.Advance(absl::Minutes(10));
  EXPECT_EQ(task->runs(), 3);
}

TEST_F(PeriodicTaskTest, FirstDelayIsItsOwn) {
  auto timer = Create();
  std::vector<int64_t> ran;
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(3), absl::Seconds(10), [&] {
                ran.push_back(NowSeconds());
              }).value();
  clock_.Advance(absl::Seconds(25));
  EXPECT_THAT(ran, ElementsAre(3, 13, 23));
}

// A run that takes 25 s of a 10 s period: the two periods that it has used up are skipped, and the
// rhythm stays.
TEST_F(PeriodicTaskTest, ASlowRunNeitherPilesUpNorDrifts) {
  auto timer = Create();
  std::vector<int64_t> ran;
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(10), [&] {
                ran.push_back(NowSeconds());
                EXPECT_LE(timer->pending(), 0);
                if (ran.size() == 1) clock_.Jump(absl::Seconds(25));
              }).value();
  clock_.Advance(absl::Seconds(60));
  EXPECT_THAT(ran, ElementsAre(10, 40, 50, 60));
}

TEST_F(PeriodicTaskTest, AJumpOfTheClockIsOneRun) {
  auto timer = Create();
  std::vector<int64_t> ran;
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(10), [&] {
                ran.push_back(NowSeconds());
              }).value();
  clock_.Jump(absl::Seconds(1005));
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(ran, ElementsAre(1005, 1010));
}

TEST_F(PeriodicTaskTest, ComesBackAfterItThrew) {
  auto timer = Create();
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(10), [] {
                throw std::runtime_error("no luck");
              }).value();
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(task->runs(), 3);
  EXPECT_EQ(timer->Stats().failed, 3);
}

TEST_F(PeriodicTaskTest, StopFromItsOwnRunMakesThatTheLast) {
  auto timer = Create();
  std::unique_ptr<PeriodicTask> task;
  task = PeriodicTask::Start(timer.get(), absl::Seconds(10), [&] {
           if (task->runs() == 2) task->Stop();
         }).value();
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(task->runs(), 2);
  EXPECT_EQ(timer->pending(), 0);
}

TEST_F(PeriodicTaskTest, MayBeDestroyedFromItsOwnRun) {
  auto timer = Create();
  int runs = 0;
  std::unique_ptr<PeriodicTask> task;
  auto held = std::make_shared<int>();
  task = PeriodicTask::Start(timer.get(), absl::Seconds(10), [&, held] {
           task.reset();
           ++runs;
           EXPECT_EQ(held.use_count(), 2);  // what the work holds lives until it ends
         }).value();
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(held.use_count(), 1);
}

// A full timer refuses others, not what comes back.
TEST_F(PeriodicTaskTest, ComesBackToAFullTimer) {
  HashedWheelTimer::Options options;
  options.clock = &clock_;
  options.max_pending_timeouts = 1;
  auto timer = HashedWheelTimer::Create(options).value();
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(10), [&] {
                timer->NewTimeout([] {}, absl::Hours(1)).IgnoreError();
              }).value();
  clock_.Advance(absl::Seconds(45));
  EXPECT_EQ(task->runs(), 4);
}

TEST_F(PeriodicTaskTest, RefusesPeriodsThatAreNone) {
  auto timer = Create();
  for (absl::Duration period :
       {absl::ZeroDuration(), -absl::Seconds(1), absl::InfiniteDuration()}) {
    const auto task = PeriodicTask::Start(timer.get(), period, [] {});
    EXPECT_EQ(task.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(task.status().message()), HasSubstr("period"));
  }
  timer->Stop().value();
  EXPECT_EQ(PeriodicTask::Start(timer.get(), absl::Seconds(1), [] {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(PeriodicTaskTest, HugePeriods) {
  auto timer = Create();
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(1), absl::Hours(24 * 365 * 250), [] {
              }).value();
  clock_.Advance(absl::Hours(24 * 365 * 200));
  EXPECT_EQ(task->runs(), 1);
}

TEST(PeriodicTaskThreadsTest, StopWaitsForTheRunAndNoRunFollows) {
  ThreadPool pool(2);
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
    HashedWheelTimer::Options options;
    options.tick_duration = absl::Milliseconds(1);
    options.executor = executor;
    auto timer = HashedWheelTimer::Create(options).value();
    for (int round = 0; round < 50; ++round) {
      std::atomic<bool> running{false};
      std::atomic<bool> stopped{false};
      auto task = PeriodicTask::Start(timer.get(), absl::Milliseconds(1), [&] {
                    running = true;
                    std::this_thread::yield();
                    EXPECT_FALSE(stopped);
                    running = false;
                  }).value();
      while (task->runs() < round % 3) std::this_thread::yield();
      task->Stop();
      stopped = true;
      EXPECT_FALSE(running);
    }
  }
}

}  // namespace
}  // namespace failback
