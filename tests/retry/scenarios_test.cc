// Scenarios from the literature on hashed wheel timers: the articles on Netty's, Dubbo's and
// Redisson's use of it tell each of these as an example, or as a bug of a simpler timer.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "retry/periodic_task.h"
#include "retry/simulated_clock.h"

namespace failback {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMillisecond = 1000000;

class ScenariosTest : public ::testing::Test {
 protected:
  std::unique_ptr<HashedWheelTimer> Create(absl::Duration tick, int slots) {
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    options.tick_duration = tick;
    options.ticks_per_wheel = slots;
    options.log = [](const std::string&) {};
    return HashedWheelTimer::Create(options).value();
  }
  int64_t NowMillis() const { return clock_.NowNanos() / kMillisecond; }

  SimulatedClock clock_;
};

// With java.util.Timer the second of two 2 s tasks due at the same second starts only when the
// first has ended. Here each waits, while it runs, for the other to have started.
TEST(ScenariosThreadsTest, TwoTwoSecondTasksDueAtTheSameSecondStartTogether) {
  ThreadPool pool(2);
  SimulatedClock clock;
  HashedWheelTimer::Options options;
  options.clock = &clock;
  options.executor = &pool;
  auto timer = HashedWheelTimer::Create(options).value();
  Mutex mu;
  CondVar changed;
  int started = 0;
  int met = 0;
  const auto two_seconds_of_work = [&] {
    MutexLock lock(&mu);
    ++started;
    changed.SignalAll();
    const absl::Duration patience = absl::Seconds(30);
    while (started < 2 && changed.WaitFor(&mu, patience)) {
    }
    met += started == 2;
    changed.SignalAll();
  };
  Timeout first = timer->NewTimeout(two_seconds_of_work, absl::Seconds(1)).value();
  Timeout second = timer->NewTimeout(two_seconds_of_work, absl::Seconds(1)).value();
  clock.Advance(absl::Seconds(1));
  {
    MutexLock lock(&mu);
    while (met < 2 && changed.WaitFor(&mu, absl::Seconds(60))) {
    }
    EXPECT_EQ(met, 2);
  }
  first.Wait();
  second.Wait();
}

// 220, 410 and 1930 ms on ten slots of 100 ms: the third is more than one turn of that wheel away.
TEST_F(ScenariosTest, TasksOf220And410And1930MillisecondsOnTenSlotsOf100) {
  auto timer = Create(absl::Milliseconds(100), 10);
  std::vector<int64_t> ran;
  for (int delay : {1930, 220, 410}) {
    timer->NewTimeout([&] { ran.push_back(NowMillis()); }, absl::Milliseconds(delay)).value();
  }
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(ran, ElementsAre(300, 500, 2000));
}

// Long connections that expire after 9 s. One reconnects, which moves its deadline; in a wheel of
// queues it then blocks the one behind it in its bucket.
TEST_F(ScenariosTest, ARefreshedConnectionAtABucketsHeadDoesNotHoldUpTheOneBehindIt) {
  auto timer = Create(absl::Seconds(1), 4);
  std::vector<std::string> expired;
  const auto connect = [&](const std::string& name) {
    return timer
        ->NewTimeout(
            [&, name] { expired.push_back(name + "@" + std::to_string(NowMillis() / 1000)); },
            absl::Seconds(9))
        .value();
  };
  Timeout head = connect("head");
  Timeout behind = connect("behind");
  clock_.Advance(absl::Seconds(5));
  ASSERT_TRUE(head.Reschedule(absl::Seconds(19)));
  clock_.Advance(absl::Seconds(4));
  EXPECT_THAT(expired, ElementsAre("behind@9"));
  clock_.Advance(absl::Seconds(60));
  EXPECT_THAT(expired, ElementsAre("behind@9", "head@24"));
}

// A task that puts itself back runs again only after its work has ended, however long that hangs;
// a fixed-rate scheduler stacks runs instead.
TEST(ScenariosThreadsTest, ATaskThatReAddsItselfWhileItsWorkHangsIsNeverStacked) {
  ThreadPool pool(4);
  SimulatedClock clock;
  HashedWheelTimer::Options options;
  options.clock = &clock;
  options.executor = &pool;
  auto timer = HashedWheelTimer::Create(options).value();
  std::atomic<int> at_once{0};
  std::atomic<int> most_at_once{0};
  std::atomic<bool> hang{true};
  auto task = PeriodicTask::Start(timer.get(), absl::Seconds(1), [&] {
                most_at_once = std::max(most_at_once.load(), ++at_once);
                while (hang) std::this_thread::yield();
                --at_once;
              }).value();
  clock.Advance(absl::Seconds(1));
  while (task->runs() < 1) std::this_thread::yield();
  clock.Advance(absl::Seconds(100));  // a hundred periods, and the first run still hangs
  EXPECT_EQ(task->runs(), 1);
  EXPECT_EQ(timer->pending(), 0);
  hang = false;
  while (timer->pending() == 0) std::this_thread::yield();
  clock.Advance(absl::Seconds(1));
  while (task->runs() < 2) std::this_thread::yield();
  task->Stop();
  EXPECT_EQ(task->runs(), 2);  // nothing is caught up on
  EXPECT_EQ(most_at_once, 1);
}

TEST_F(ScenariosTest, ATaskThatThrowsDoesNotStopTheWheel) {
  auto timer = Create(absl::Milliseconds(100), 512);
  std::vector<int64_t> ran;
  timer->NewTimeout([] { throw 1; }, absl::Seconds(1)).value();
  timer->NewTimeout([&] { ran.push_back(NowMillis()); }, absl::Seconds(1)).value();
  timer->NewTimeout([&] { ran.push_back(NowMillis()); }, absl::Seconds(2)).value();
  clock_.Advance(absl::Seconds(3));
  EXPECT_THAT(ran, ElementsAre(1000, 2000));
}

// Redisson's watchdog: a lock's lease of 30 s is renewed every 10 s, as long as its owner lives.
TEST_F(ScenariosTest, RenewalAtAThirdOfTheTtl) {
  auto timer = Create(absl::Milliseconds(100), 1024);
  const absl::Duration ttl = absl::Seconds(30);
  int64_t expired_at = 0;
  Timeout lease = timer->NewTimeout([&] { expired_at = NowMillis(); }, ttl).value();
  auto watchdog = PeriodicTask::Start(timer.get(), ttl / 3, [&] {
                    EXPECT_TRUE(lease.Reschedule(ttl));
                  }).value();
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(expired_at, 0);
  EXPECT_EQ(watchdog->runs(), 360);
  watchdog->Stop();  // the owner dies
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(expired_at, 3600 * 1000 + 30 * 1000);
}

// Dubbo's failback cluster: a failed call goes on a wheel of 32 slots of 1 s, and again every 5 s
// until it succeeds.
TEST_F(ScenariosTest, FailbackCallsOnAWheelOf32SlotsOfOneSecond) {
  auto timer = Create(absl::Seconds(1), 32);
  struct Call {
    int failures_left;
    int64_t succeeded_at = 0;
  };
  std::vector<Call> calls;
  calls.reserve(100);
  for (int i = 0; i < 100; ++i) calls.push_back({i});
  std::function<void(Call*)> attempt = [&](Call* call) {
    if (call->failures_left-- == 0) {
      call->succeeded_at = NowMillis() / 1000;
      return;
    }
    timer->NewTimeout([&attempt, call] { attempt(call); }, absl::Seconds(5)).value();
  };
  for (Call& call : calls) attempt(&call);
  clock_.Advance(absl::Minutes(10));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(calls[i].succeeded_at, 5 * i);
  EXPECT_EQ(timer->pending(), 0);
}

}  // namespace
}  // namespace failback
