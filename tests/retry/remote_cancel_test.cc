// Cancels from threads that did not schedule: they take no lock, and are as exact as the others.

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/timer_slab.h"
#include "retry/wheel.h"
#include "tests/retry/timer_threads.h"

namespace failback {
namespace {

// Runs `what` on a thread of its own, which has another shard than the caller's: the timer has two
// for each processor, and threads take them in turn.
template <typename What>
void Elsewhere(What what) {
  std::thread(std::move(what)).join();
}

TEST(RemoteCancelTest, IsFinalWhenItReturns) {
  HashedWheelTimer::Options options;
  options.max_pending_timeouts = 1;
  auto timer = HashedWheelTimer::Create(options).value();
  for (int round = 0; round < 1000; ++round) {
    const auto held = std::make_shared<int>(0);
    auto timeout = timer->NewTimeout([held] { ++*held; }, absl::Hours(1));
    ASSERT_TRUE(timeout.ok()) << timeout.status() << " in round " << round;
    Elsewhere([&] {
      EXPECT_TRUE(timeout->Cancel());
      EXPECT_EQ(held.use_count(), 1) << "what the task held is gone";
      EXPECT_EQ(timer->pending(), 0);
      EXPECT_FALSE(timeout->Cancel());
    });
    EXPECT_EQ(*held, 0);
  }
  EXPECT_EQ(timer->Stats().scheduled, 1000);
  EXPECT_EQ(timer->Stats().cancelled, 1000);
}

// A task may call its timer when it is destroyed.
TEST(RemoteCancelTest, WhatATaskHoldsMayCallTheTimer) {
  auto timer = Create();
  std::atomic<int64_t> seen{-1};
  auto held = std::shared_ptr<int>(new int, [&](int* value) {
    delete value;
    seen = timer->pending();
  });
  Timeout timeout = timer->NewTimeout([held] {}, absl::Hours(1)).value();
  held.reset();
  Elsewhere([&] { EXPECT_TRUE(timeout.Cancel()); });
  EXPECT_EQ(seen, 0);
}

TEST(RemoteCancelTest, OneThatWasPutOffIsCancelledToo) {
  auto timer = Create();
  std::atomic<int> runs{0};
  for (int round = 0; round < 200; ++round) {
    Timeout timeout = timer->NewTimeout([&] { ++runs; }, absl::Milliseconds(2)).value();
    Elsewhere([&] {
      const bool later = timeout.Reschedule(absl::Hours(1));
      EXPECT_EQ(timeout.Cancel(), later);
      if (!later) timeout.Wait();
    });
  }
  EXPECT_EQ(timer->pending(), 0);
  EXPECT_EQ(timer->Stats().fired, runs);
}

// Timeouts that are just about to run: each runs once or was cancelled, never both.
TEST(RemoteCancelTest, RacesTheDriver) {
  constexpr int kRounds = 100;
  constexpr int kTimeouts = 500;
  ThreadPool pool(2);
  const unsigned seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
    auto timer = Create(executor);
    std::minstd_rand random(seed);
    int wrong = 0;
    int cancelled = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::atomic<int>> runs(kTimeouts);
      std::vector<Timeout> timeouts;
      for (int i = 0; i < kTimeouts; ++i) {
        timeouts.push_back(
            timer->NewTimeout([&runs, i] { ++runs[i]; }, absl::Microseconds(random() % 4000))
                .value());
      }
      Elsewhere([&] {
        for (int i = 0; i < kTimeouts; ++i) {
          const bool won = timeouts[i].Cancel();
          if (!won) timeouts[i].Wait();
          cancelled += won;
          wrong += runs[i] != (won ? 0 : 1);
        }
      });
      for (const auto& one : runs) wrong += one > 1;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(timer->pending(), 0);
    EXPECT_EQ(timer->Stats().cancelled, cancelled);
    EXPECT_EQ(timer->Stats().fired, int64_t{kRounds} * kTimeouts - cancelled);
  }
}

// One thread schedules, another cancels, a third stops: each task that was accepted has run, was
// cancelled or is returned.
TEST(RemoteCancelTest, RacesStop) {
  constexpr int kRounds = 300;
  constexpr int kRing = 64;
  for (int round = 0; round < kRounds; ++round) {
    auto timer = Create();
    std::atomic<int64_t> ran{0};
    std::vector<Timeout> ring(kRing);
    std::atomic<int64_t> scheduled{0};
    std::atomic<int64_t> taken{0};
    std::atomic<bool> refused{false};
    int64_t cancelled = 0;
    std::thread producer([&] {
      for (int64_t i = 0;; ++i) {
        while (i - taken >= kRing && !refused) std::this_thread::yield();
        auto timeout = timer->NewTimeout([&] { ++ran; }, absl::Microseconds(i % 3000));
        if (!timeout.ok()) break;
        ring[i % kRing] = *std::move(timeout);
        scheduled = i + 1;
      }
      refused = true;
    });
    std::thread canceller([&] {
      for (int64_t i = 0;; ++i) {
        while (scheduled <= i && !refused) std::this_thread::yield();
        if (scheduled <= i) break;
        cancelled += ring[i % kRing].Cancel();
        taken = i + 1;
      }
    });
    while (taken < round % 100) std::this_thread::yield();
    const auto returned = static_cast<int64_t>(timer->Stop().value().size());
    producer.join();
    canceller.join();
    ASSERT_EQ(scheduled, ran + cancelled + returned) << "round " << round;
    ASSERT_EQ(timer->pending(), 0);
  }
}

// What Reclaim gets back was in a slot, or taken out of one before it was withheld or after.
TEST(RemoteCancelTest, AWithheldEntryIsNeverStartedAndComesBackFromAnywhere) {
  TimerSlab slab;
  Wheel wheel(Wheel::Options{}, &slab);
  CancelledEntries cancelled;
  int runs = 0;
  const auto withhold = [&](Wheel::Id id) {
    TimerEntry* const entry = slab.At(id.index);
    ASSERT_TRUE(entry->Withhold(id.generation));
    EXPECT_FALSE(entry->Withhold(id.generation));
    entry->task().~TimerTask();
    cancelled.Push(id.index, entry);
  };
  std::vector<Wheel::Id> ids;
  for (const Wheel::Tick tick : {10, 10, 600, 600, 100000}) {
    ids.push_back(wheel.Schedule(tick, [&] { ++runs; }));
  }
  const Wheel::Id due = wheel.Schedule(9, [] {});
  // At level 0, at levels above, of which the slots open before it is back.
  for (const size_t i : {size_t{0}, size_t{2}, size_t{4}}) withhold(ids[i]);
  EXPECT_EQ(wheel.CheckInvariants(), "");
  // In the buffer of due entries, and popped.
  int budget = 100;
  const Wheel::Id popped = wheel.PopDue(9, &budget);
  EXPECT_EQ(popped.index, due.index);
  withhold(due);
  EXPECT_EQ(wheel.Start(popped), nullptr);
  wheel.Advance(700);
  EXPECT_EQ(runs, 2) << "those that were not withheld";
  EXPECT_EQ(wheel.pending(), 4) << "until they are back";
  EXPECT_EQ(wheel.CheckInvariants(), "");
  EXPECT_EQ(wheel.Reclaim(&cancelled, 100), 4);
  EXPECT_EQ(wheel.Reclaim(&cancelled, 100), 0);
  EXPECT_EQ(wheel.pending(), 0);
  EXPECT_EQ(wheel.CheckInvariants(), "");
  for (const Wheel::Id id : ids) EXPECT_EQ(wheel.StateOf(id), Wheel::State::kFree);
  wheel.Advance(200000);
  EXPECT_EQ(runs, 2);
}

// Many come back in portions, in the memory that the next ones are given.
TEST(RemoteCancelTest, ReclaimWorksInSlices) {
  constexpr int kMany = 1000;
  TimerSlab slab;
  Wheel wheel(Wheel::Options{}, &slab);
  CancelledEntries cancelled;
  for (int pass = 0; pass < 3; ++pass) {
    uint32_t greatest = 0;
    for (int i = 0; i < kMany; ++i) {
      const Wheel::Id id = wheel.Schedule(wheel.now() + 1 + i, [] {});
      greatest = std::max(greatest, id.index);
      TimerEntry* const entry = slab.At(id.index);
      ASSERT_TRUE(entry->Withhold(id.generation));
      entry->task().~TimerTask();
      cancelled.Push(id.index, entry);
    }
    EXPECT_EQ(greatest, uint32_t{kMany});
    int back = 0;
    for (int slice; (slice = wheel.Reclaim(&cancelled, 100)) > 0; back += slice) {
      EXPECT_LT(slice, 100 + CancelledEntries::kLanes);
    }
    EXPECT_EQ(back, kMany);
    EXPECT_EQ(wheel.CheckInvariants(), "");
  }
}

}  // namespace
}  // namespace failback
