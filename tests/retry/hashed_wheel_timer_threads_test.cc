// The timer with real threads and real time.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "tests/util/sanitized_build.h"

namespace failback {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);

std::unique_ptr<HashedWheelTimer> Create(Executor* executor = nullptr) {
  HashedWheelTimer::Options options;
  options.tick_duration = absl::Milliseconds(1);
  options.executor = executor;
  return HashedWheelTimer::Create(options).value();
}

// Something that happens once, for one thread to wait for; as absl::Notification, but TSan sees it.
class Event {
 public:
  void Happen() {
    MutexLock lock(&mu_);
    happened_ = true;
    changed_.SignalAll();
  }
  bool happened() {
    MutexLock lock(&mu_);
    return happened_;
  }
  // False if it has not happened within a deadline that only a hanging test reaches.
  bool Await() {
    MutexLock lock(&mu_);
    const absl::Time end = absl::Now() + kDeadline;
    while (!happened_ && absl::Now() < end) changed_.WaitFor(&mu_, end - absl::Now());
    return happened_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool happened_ ABSL_GUARDED_BY(mu_) = false;
};

// A pool of one thread that counts what it was handed.
class CountingPool final : public Executor {
 public:
  void Execute(absl::AnyInvocable<void() &&> task) override {
    pool_.Execute(std::move(task));
    ++executed_;
  }
  void AwaitExecuted(int count) {
    while (executed_ < count) std::this_thread::yield();
  }

 private:
  std::atomic<int> executed_{0};
  ThreadPool pool_{1};
};

TEST(HashedWheelTimerThreadsTest, NoTaskIsEarly) {
  auto timer = Create();
  Clock* const clock = Clock::Real();
  std::mt19937 random(1);
  constexpr int kTimers = 5000;
  std::atomic<int> ran{0};
  std::atomic<int> early{0};
  Event done;
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
  Event ran;
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
  Event first, second, third;
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
      Event started;
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
  Event release, other;
  timer->NewTimeout([&] { release.Await(); }, absl::ZeroDuration()).value();
  timer->NewTimeout([&] { other.Happen(); }, absl::Milliseconds(5)).value();
  EXPECT_TRUE(other.Await());
  release.Happen();
}

TEST(HashedWheelTimerThreadsTest, WhatWaitsInTheExecutorsQueueCanBeCancelledAndRescheduled) {
  Event started, release, moved_ran;
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
  Event started, release;
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
  Event started;
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
    Event ended;
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

// Leases on the edge: each is put off, without the timer's lock, just when it is due. A renewal
// that returned true holds; one that returned false was too late, and the task runs, once.
TEST(HashedWheelTimerThreadsTest, RenewalsRaceTheDriver) {
  constexpr int kThreads = 3;
  constexpr int kLeases = 400;
  constexpr int kRenewals = 20;
  struct Lease {
    Timeout timeout;
    std::atomic<int64_t> not_before{0};
    std::atomic<int> runs{0};
  };
  ThreadPool pool(2);
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
    auto timer = Create(executor);
    std::atomic<int> early{0};
    std::atomic<int> wrong{0};
    std::atomic<int> renewed{0};
    const auto renew = [&] {
      const Clock* const clock = Clock::Real();
      std::vector<Lease> leases(kLeases);
      for (Lease& lease : leases) {
        const auto expire = [&lease, &early, clock] {
          if (clock->NowNanos() < lease.not_before) ++early;
          ++lease.runs;
        };
        lease.timeout = timer->NewTimeout(expire, absl::Milliseconds(1)).value();
      }
      for (int renewal = 0; renewal < kRenewals; ++renewal) {
        const int64_t pass = clock->NowNanos() + 1000000;
        for (Lease& lease : leases) {
          const absl::Duration delay = absl::Microseconds(1000 + renewal * 50);
          const int64_t not_before = clock->NowNanos() + absl::ToInt64Nanoseconds(delay);
          const bool held = lease.timeout.Reschedule(delay);
          if (!held) continue;
          // Whoever runs it from now on keeps to the new deadline.
          if (lease.runs > 0 && clock->NowNanos() < not_before) ++wrong;
          lease.not_before = not_before;
          ++renewed;
        }
        while (clock->NowNanos() < pass) std::this_thread::yield();
      }
      for (Lease& lease : leases) {
        if (lease.timeout.Cancel()) {
          if (lease.runs != 0) ++wrong;
        } else {
          lease.timeout.Wait();
          if (lease.runs != 1) ++wrong;
        }
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int i = 0; i < kThreads; ++i) threads.emplace_back(renew);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(early, 0);
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(renewed, 0);
    EXPECT_EQ(timer->pending(), 0);
  }
}

// A renewal and the start of the same task, again and again at the same moment: one of the two
// wins, and the other knows.
TEST(HashedWheelTimerThreadsTest, ARenewalAtTheLastMomentEitherHoldsOrIsRefused) {
  constexpr int kRounds = 20000;
  HashedWheelTimer::Options options;
  options.tick_duration = absl::Microseconds(1);
  options.manual_drive = true;
  auto timer = HashedWheelTimer::Create(options).value();
  const Clock* const clock = Clock::Real();
  std::atomic<bool> done{false};
  std::atomic<int> runs{0};
  std::thread driver([&] {
    while (!done) {
      if (timer->RunDue() == 0) std::this_thread::yield();
    }
  });
  std::minstd_rand random(1);
  int64_t aim_nanos = 2500;  // when it is about as likely to hold as to be refused
  int held = 0;
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int before = runs;
    Timeout timeout = timer->NewTimeout([&] { ++runs; }, absl::Microseconds(2)).value();
    const int64_t moment = clock->NowNanos() + aim_nanos + random() % 256;
    while (clock->NowNanos() < moment) {
    }
    const bool renewed = timeout.Reschedule(absl::Hours(1));
    const bool cancelled = timeout.Cancel();
    if (!cancelled) timeout.Wait();
    held += renewed;
    aim_nanos = std::clamp<int64_t>(aim_nanos + (renewed ? 40 : -40), 2000, 6000);
    wrong += cancelled != renewed || runs != before + !renewed;
  }
  done = true;
  driver.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(timer->pending(), 0);
  RecordProperty("held", held);
}

// Producers on many threads that add, cancel and reschedule their own and each other's.
TEST(HashedWheelTimerThreadsTest, ManyProducers) {
  constexpr int kProducers = 4;
  constexpr int kOperations = 20000;
  auto timer = Create();
  std::atomic<int64_t> ran{0};
  std::atomic<int64_t> added{0};
  std::atomic<int64_t> cancelled{0};
  struct Shelf {
    Mutex mu;
    std::vector<Timeout> timeouts ABSL_GUARDED_BY(mu) = std::vector<Timeout>(64);
  };
  std::vector<Shelf> shelves(kProducers);
  std::vector<std::thread> producers;
  producers.reserve(kProducers);
  for (int producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&, producer] {
      std::mt19937 random(producer);
      for (int i = 0; i < kOperations; ++i) {
        Timeout timeout =
            timer->NewTimeout([&] { ++ran; }, absl::Microseconds(random() % 20000)).value();
        ++added;
        Shelf& shelf = shelves[random() % kProducers];
        MutexLock lock(&shelf.mu);
        Timeout& other = shelf.timeouts[random() % shelf.timeouts.size()];
        if (random() % 2 == 0) {
          if (other.Cancel()) ++cancelled;
        } else {
          other.Reschedule(absl::Microseconds(random() % 20000));
        }
        other = std::move(timeout);
      }
    });
  }
  for (std::thread& producer : producers) producer.join();
  const size_t returned = timer->Stop().value().size();
  EXPECT_EQ(ran + cancelled + static_cast<int64_t>(returned), added);
  const HashedWheelTimer::Statistics stats = timer->Stats();
  EXPECT_EQ(stats.scheduled, added);
  EXPECT_EQ(stats.fired, ran);
  EXPECT_EQ(stats.cancelled, cancelled);
  EXPECT_EQ(stats.pending, 0);
}

// Every accepted task has run or is handed back, in ten thousand rounds: one thread makes a timer,
// adds a few and stops it, two others add to whatever timer there is until it refuses them.
TEST(HashedWheelTimerThreadsTest, StopRacingProducersLosesNothing) {
  // A sanitized round takes ten times as long.
  constexpr int kRounds = kAddressSanitizer || kThreadSanitizer ? 1000 : 10000;
  struct Round {
    std::unique_ptr<HashedWheelTimer> timer = Create();
    std::atomic<int64_t> ran{0};
    std::atomic<int64_t> accepted{0};
    std::atomic<bool> raced{false};
    int64_t returned = 0;

    bool Add(absl::Duration delay) {
      const bool ok = timer->NewTimeout([this] { ran.fetch_add(1); }, delay).ok();
      accepted.fetch_add(ok);
      return ok;
    }
  };
  Mutex mu;
  std::shared_ptr<Round> current;  // under mu
  std::atomic<bool> finished{false};
  const auto produce = [&] {
    while (!finished) {
      std::shared_ptr<Round> round;
      {
        MutexLock lock(&mu);
        round = current;
      }
      if (round == nullptr) continue;
      bool any = false;
      for (int64_t delay = 0; round->Add(absl::Microseconds(delay)); delay = (delay + 37) % 2000) {
        any = true;
      }
      if (any) round->raced = true;
    }
  };
  std::thread first(produce);
  std::thread second(produce);
  std::minstd_rand random(1);
  int64_t total = 0;
  int64_t lost = 0;
  int raced = 0;
  std::vector<std::shared_ptr<Round>> ended;
  for (int i = 0; i < kRounds; ++i) {
    auto round = std::make_shared<Round>();
    {
      MutexLock lock(&mu);
      current = round;
    }
    for (int add = i % 50; add > 0; --add) round->Add(absl::Microseconds(random() % 2000));
    round->returned = round->timer->Stop().value().size();
    ended.push_back(std::move(round));
    // A round is over when the producers have left it.
    for (size_t at = 0; at + 1 < ended.size();) {
      if (ended[at].use_count() > 1) {
        ++at;
        continue;
      }
      const Round& over = *ended[at];
      total += over.accepted;
      lost += over.accepted - over.ran - over.returned;
      raced += over.raced;
      ended.erase(ended.begin() + at);
    }
  }
  finished = true;
  first.join();
  second.join();
  for (const std::shared_ptr<Round>& over : ended) {
    total += over->accepted;
    lost += over->accepted - over->ran - over->returned;
  }
  EXPECT_EQ(lost, 0) << "of " << total;
  std::cout << total << " accepted in " << kRounds << " rounds, " << raced << " of them raced; "
            << lost << " lost\n";
}

TEST(HashedWheelTimerThreadsTest, HandlesRaceTheEndOfTheirTimer) {
  for (int round = 0; round < 1000; ++round) {
    auto timer = Create();
    std::vector<Timeout> timeouts;
    timeouts.reserve(20);
    for (int i = 0; i < 20; ++i) {
      timeouts.push_back(timer->NewTimeout([] {}, absl::Microseconds(100 * i)).value());
    }
    std::thread user([&] {
      for (Timeout& timeout : timeouts) {
        if (!timeout.Reschedule(absl::Milliseconds(1)) && !timeout.Cancel()) timeout.Wait();
        timeout.IsExpired();
      }
    });
    timer.reset();
    user.join();
  }
}

// A process that is stopped and goes on: what became due meanwhile starts once, in due order.
TEST(HashedWheelTimerThreadsTest, SigstopAndSigcont) {
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    auto timer = Create();
    Mutex mu;
    std::string ran;
    Event last;
    for (int i : {3, 1, 4, 2, 5}) {
      timer
          ->NewTimeout(
              [&, i] {
                MutexLock lock(&mu);
                ran += static_cast<char>('0' + i);
                if (i == 5) last.Happen();
              },
              absl::Milliseconds(1000 + 20 * i))
          .value();
    }
    kill(getpid(), SIGSTOP);  // stops itself: no other can be sure to be in time
    const bool done = last.Await();
    const absl::Duration late = timer->Stats().worst_lateness;
    timer->Stop().value();
    _exit(!done ? 1 : ran != "12345" ? 2 : late < absl::Milliseconds(100) ? 3 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const int64_t resume = Clock::Real()->NowNanos() + absl::ToInt64Nanoseconds(absl::Seconds(2));
  while (Clock::Real()->NowNanos() < resume) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: hung, 2: out of order, 3: lateness not reported";
}

}  // namespace
}  // namespace failback
