#include "retry/hashed_wheel_timer.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "retry/periodic_task.h"
#include "retry/simulated_clock.h"

namespace failback {
namespace {

TEST(HashedWheelTimerTest, RunsInOrderUnderASimulatedClock) {
  SimulatedClock clock;
  HashedWheelTimer::Options options;
  options.clock = &clock;
  auto timer = HashedWheelTimer::Create(options).value();
  std::string ran;
  Timeout b = timer
                  ->NewTimeout(
                      [&] {
                        ran += "b";
                        EXPECT_EQ(clock.NowNanos(), 300000000);
                      },
                      absl::Milliseconds(250))
                  .value();
  Timeout a = timer->NewTimeout([&] { ran += "a"; }, absl::Milliseconds(100)).value();
  Timeout c = timer->NewTimeout([&] { ran += "c"; }, absl::Milliseconds(251)).value();
  Timeout d = timer->NewTimeout([&] { ran += "d"; }, absl::Milliseconds(200)).value();
  EXPECT_TRUE(d.Cancel());
  EXPECT_FALSE(d.Cancel());
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(ran, "abc");
  EXPECT_TRUE(a.IsExpired());
  EXPECT_TRUE(d.IsCancelled());
  EXPECT_EQ(timer->pending(), 0);
}

TEST(HashedWheelTimerTest, DriverThread) {
  HashedWheelTimer::Options options;
  options.tick_duration = absl::Milliseconds(1);
  auto timer = HashedWheelTimer::Create(options).value();
  std::atomic<bool> done{false};
  Timeout t = timer->NewTimeout([&] { done = true; }, absl::Milliseconds(5)).value();
  while (!done) std::this_thread::yield();
  t.Wait();
  EXPECT_TRUE(t.IsExpired());
  Timeout never = timer->NewTimeout([&] {}, absl::InfiniteDuration()).value();
  EXPECT_EQ(timer->Stop().value().size(), 1u);
  EXPECT_FALSE(timer->NewTimeout([&] {}, absl::Milliseconds(5)).ok());
}

TEST(PeriodicTaskTest, Runs) {
  SimulatedClock clock;
  HashedWheelTimer::Options options;
  options.clock = &clock;
  auto timer = HashedWheelTimer::Create(options).value();
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(1), [] {}).value();
  clock.Advance(absl::Seconds(10));
  EXPECT_EQ(task->runs(), 10);
  task->Stop();
  clock.Advance(absl::Seconds(10));
  EXPECT_EQ(task->runs(), 10);
}

}  // namespace
}  // namespace failback
