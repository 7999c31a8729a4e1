// Threads that add, put off, cancel and stop at the same moment, in real time.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "tests/retry/timer_threads.h"
#include "tests/util/sanitized_build.h"

namespace failback {
namespace {

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
    OnceEvent last;
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
