#include "retry/executor.h"

#include <atomic>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "retry/clock.h"
#include "retry/mutex.h"

namespace failback {
namespace {

TEST(ExecutorTest, PoolOfOneKeepsTheOrder) {
  std::vector<int> ran;
  {
    ThreadPool pool(1);
    for (int i = 0; i < 1000; ++i) pool.Execute([&ran, i] { ran.push_back(i); });
  }
  ASSERT_EQ(ran.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ran[i], i);
}

TEST(ExecutorTest, PoolRunsWhatIsQueuedBeforeItEndsAlsoFromWithinTasks) {
  std::atomic<int> ran{0};
  {
    ThreadPool pool(3);
    for (int i = 0; i < 100; ++i) {
      pool.Execute([&] {
        ran.fetch_add(1);
        pool.Execute([&] { ran.fetch_add(1); });
      });
    }
  }
  EXPECT_EQ(ran.load(), 200);
}

TEST(ExecutorTest, PoolRunsTasksAtTheSameTime) {
  // Each task waits for the other: a single thread would never finish.
  ThreadPool pool(2);
  Mutex mu;
  CondVar met;
  int arrived = 0;
  for (int i = 0; i < 2; ++i) {
    pool.Execute([&] {
      MutexLock lock(&mu);
      ++arrived;
      met.SignalAll();
      while (arrived < 2) met.Wait(&mu);
    });
  }
  MutexLock lock(&mu);
  while (arrived < 2) met.Wait(&mu);
  EXPECT_EQ(arrived, 2);
}

TEST(ClockTest, TheRealClockNeverGoesBack) {
  const Clock* clock = Clock::Real();
  int64_t last = clock->NowNanos();
  for (int i = 0; i < 10000; ++i) {
    const int64_t now = clock->NowNanos();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_EQ(Clock::Real(), clock);
  EXPECT_LT(absl::AbsDuration(absl::Now() - clock->WallNow()), absl::Minutes(1));
}

}  // namespace
}  // namespace failback
