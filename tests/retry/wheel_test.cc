#include "retry/wheel.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/timer_slab.h"

// Counts what the code under test allocates.
namespace {
int64_t allocations = 0;
}  // namespace

// Not inlined, or the compiler sees malloc here and delete there and warns.
__attribute__((noinline)) void* operator new(size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tick = Wheel::Tick;

Wheel::Options OptionsOf(int ticks_per_wheel, bool keep_insertion_order = false) {
  Wheel::Options options;
  options.ticks_per_wheel = ticks_per_wheel;
  options.keep_insertion_order = keep_insertion_order;
  return options;
}

// Schedules a task that notes the tick at which it runs.
Wheel::Id Note(Wheel* wheel, Tick deadline, std::vector<Tick>* ran) {
  return wheel->Schedule(deadline, [wheel, ran] { ran->push_back(wheel->now()); });
}

TEST(WheelTest, RunsAtTheDeadlineAndNotBefore) {
  Wheel wheel(OptionsOf(512));
  std::vector<Tick> ran;
  Note(&wheel, 100, &ran);
  EXPECT_EQ(wheel.Advance(99), 0u);
  EXPECT_EQ(wheel.now(), 99u);
  EXPECT_EQ(wheel.pending(), 1);
  EXPECT_EQ(wheel.Advance(100), 1u);
  EXPECT_THAT(ran, ElementsAre(100));
  EXPECT_EQ(wheel.pending(), 0);
}

TEST(WheelTest, ADeadlineThatIsNotInTheFutureMeansTheNextTick) {
  Wheel wheel(OptionsOf(512));
  wheel.Advance(1000);
  std::vector<Tick> ran;
  Note(&wheel, 0, &ran);
  Note(&wheel, 1000, &ran);
  Note(&wheel, 1001, &ran);
  EXPECT_EQ(wheel.Advance(1000), 0u);
  wheel.Advance(5000);
  EXPECT_THAT(ran, ElementsAre(1001, 1001, 1001));
}

// Every wheel size, at and around every boundary of its levels.
TEST(WheelTest, LevelBoundaries) {
  for (int ticks_per_wheel : {1, 2, 8, 10, 64, 512, 1000, 65536}) {
    for (int shift = 0; shift < 62; ++shift) {
      const Tick edge = Tick{1} << shift;
      Wheel wheel(OptionsOf(ticks_per_wheel));
      std::vector<Tick> ran;
      std::vector<Tick> expected;
      for (Tick deadline : {edge - 1, edge, edge + 1, 2 * edge - 1}) {
        Note(&wheel, deadline, &ran);
        expected.push_back(std::max<Tick>(deadline, 1));
      }
      std::sort(expected.begin(), expected.end());
      if (ticks_per_wheel <= 64) {
        ASSERT_EQ(wheel.CheckInvariants(), "");
      }
      wheel.Advance(Wheel::kNever - 1);
      ASSERT_EQ(ran, expected) << ticks_per_wheel << " slots, around 2^" << shift;
    }
  }
}

TEST(WheelTest, TwoToTheFortyTicks) {
  Wheel wheel(OptionsOf(512));
  std::vector<Tick> ran;
  const Tick far = Tick{1} << 40;
  Note(&wheel, far + 3, &ran);
  Note(&wheel, far, &ran);
  Note(&wheel, far / 3, &ran);
  int events = 0;
  for (Tick event = wheel.NextEvent(); event != Wheel::kNever; event = wheel.NextEvent()) {
    ++events;
    wheel.Advance(event);
  }
  EXPECT_THAT(ran, ElementsAre(far / 3, far, far + 3));
  EXPECT_LE(events, 12);  // a trillion ticks in a dozen steps: idle ticks cost nothing
}

TEST(WheelTest, NeverIsNeverReached) {
  Wheel wheel(OptionsOf(512));
  std::vector<Tick> ran;
  const Wheel::Id id = Note(&wheel, UINT64_MAX, &ran);
  EXPECT_EQ(wheel.Advance(Wheel::kNever - 1), 0u);
  EXPECT_EQ(wheel.NextEvent(), Wheel::kNever);
  EXPECT_TRUE(wheel.Reschedule(id, 0));
  EXPECT_EQ(wheel.pending(), 1);
}

TEST(WheelTest, CancelDestroysTheTaskOnce) {
  Wheel wheel(OptionsOf(512));
  auto held = std::make_shared<int>(0);
  const Wheel::Id id = wheel.Schedule(10, [held] { ++*held; });
  EXPECT_EQ(wheel.StateOf(id), Wheel::State::kPending);
  EXPECT_TRUE(wheel.Cancel(id));
  EXPECT_EQ(held.use_count(), 1);  // freed at once, not at the old deadline
  EXPECT_EQ(wheel.StateOf(id), Wheel::State::kFree);
  EXPECT_FALSE(wheel.Cancel(id));
  EXPECT_FALSE(wheel.Reschedule(id, 20));
  wheel.Advance(100);
  EXPECT_EQ(*held, 0);
}

TEST(WheelTest, TakeReturnsTheTaskOnce) {
  Wheel wheel(OptionsOf(512));
  auto held = std::make_shared<int>(0);
  const Wheel::Id id = wheel.Schedule(10, [held] { ++*held; });
  {
    TimerTask task = wheel.Take(id);
    ASSERT_NE(task, nullptr);
    EXPECT_EQ(held.use_count(), 2);
    EXPECT_EQ(wheel.StateOf(id), Wheel::State::kFree);
    EXPECT_EQ(wheel.Take(id), nullptr);
    RunTimerTask(task);
  }
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(wheel.Advance(100), 0u);
}

TEST(WheelTest, WhatACancelledTaskHoldsMayCallTheWheelWhenItIsDestroyed) {
  Wheel wheel(OptionsOf(512));
  Wheel::Id first;
  Wheel::Id second;
  std::string violated = "not called";
  std::shared_ptr<void> held(nullptr, [&](void*) {
    EXPECT_FALSE(wheel.Cancel(first)) << "it is over";
    EXPECT_FALSE(wheel.Reschedule(first, 20));
    second = wheel.Schedule(10, [] {});
    violated = wheel.CheckInvariants();
  });
  first = wheel.Schedule(10, [held = std::move(held)] {});
  EXPECT_TRUE(wheel.Cancel(first));
  EXPECT_EQ(violated, "");
  EXPECT_EQ(wheel.CheckInvariants(), "");
  EXPECT_EQ(wheel.pending(), 1);
  EXPECT_NE(second.index, first.index);
  EXPECT_TRUE(wheel.Cancel(second));
}

TEST(WheelTest, AStaleIdNeverMatches) {
  Wheel wheel(OptionsOf(512));
  const Wheel::Id first = wheel.Schedule(10, [] {});
  wheel.Cancel(first);
  const Wheel::Id second = wheel.Schedule(10, [] {});
  ASSERT_EQ(second.index, first.index);
  EXPECT_FALSE(wheel.Cancel(first));
  EXPECT_FALSE(wheel.Reschedule(first, 20));
  EXPECT_EQ(wheel.Start(first), nullptr);
  EXPECT_EQ(wheel.StateOf(first), Wheel::State::kFree);
  EXPECT_FALSE(wheel.Cancel(Wheel::Id{}));
  EXPECT_FALSE(wheel.Cancel(Wheel::Id{12345678, 1}));
  EXPECT_TRUE(wheel.Cancel(second));
}

TEST(WheelTest, ANodeWhoseGenerationsAreUsedUpIsNotUsedAgain) {
  Wheel::Options options;
  options.first_generation = UINT32_MAX - 1;
  Wheel wheel(options);
  const Wheel::Id first = wheel.Schedule(10, [] {});
  wheel.Cancel(first);
  const Wheel::Id second = wheel.Schedule(10, [] {});
  EXPECT_EQ(second.index, first.index);
  EXPECT_EQ(second.generation, UINT32_MAX);
  wheel.Cancel(second);
  const Wheel::Id third = wheel.Schedule(10, [] {});
  EXPECT_NE(third.index, first.index);
  EXPECT_EQ(wheel.CheckInvariants(), "");
}

TEST(WheelTest, RescheduleLaterMovesWhenTheOldSlotOpens) {
  Wheel wheel(OptionsOf(512));
  std::vector<Tick> ran;
  const Wheel::Id id = Note(&wheel, 100, &ran);
  ASSERT_TRUE(wheel.Reschedule(id, 300));
  EXPECT_EQ(wheel.NextEvent(), 100u);  // still in the old slot
  wheel.Advance(299);
  EXPECT_TRUE(ran.empty());
  EXPECT_EQ(wheel.NextEvent(), 300u);
  wheel.Advance(300);
  EXPECT_THAT(ran, ElementsAre(300));
}

TEST(WheelTest, RescheduleEarlierMovesAtOnce) {
  Wheel wheel(OptionsOf(512));
  std::vector<Tick> ran;
  const Wheel::Id id = Note(&wheel, 100000, &ran);
  ASSERT_TRUE(wheel.Reschedule(id, 300));
  EXPECT_EQ(wheel.NextEvent(), 300u);
  wheel.Advance(100000);
  EXPECT_THAT(ran, ElementsAre(300));
}

TEST(WheelTest, DueOrderAcrossTicksAndInsertionOrderWithinOne) {
  Wheel wheel(OptionsOf(64, /*keep_insertion_order=*/true));
  std::vector<int> ran;
  std::vector<Wheel::Id> ids;
  ids.reserve(1000);
  for (int i = 0; i < 1000; ++i) {
    ids.push_back(wheel.Schedule(5000 + i % 2, [&ran, i] { ran.push_back(i); }));
  }
  ASSERT_TRUE(wheel.Reschedule(ids[0], 5000));  // now the last of its tick
  wheel.Advance(10000);
  ASSERT_EQ(ran.size(), 1000u);
  for (int i = 0; i < 499; ++i) ASSERT_EQ(ran[i], 2 * i + 2);
  EXPECT_EQ(ran[499], 0);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(ran[500 + i], 2 * i + 1);
}

TEST(WheelTest, ATaskMayScheduleCancelAndReschedule) {
  Wheel wheel(OptionsOf(8));
  std::vector<Tick> ran;
  const Wheel::Id cancelled = Note(&wheel, 20, &ran);
  const Wheel::Id same_tick = Note(&wheel, 10, &ran);
  const Wheel::Id moved = Note(&wheel, 1000, &ran);
  Wheel::Id self;
  bool self_cancelled = true;
  self = wheel.Schedule(9, [&] {
    ran.push_back(wheel.now());
    EXPECT_TRUE(wheel.Cancel(cancelled));
    EXPECT_TRUE(wheel.Reschedule(moved, 0));
    EXPECT_TRUE(wheel.Cancel(same_tick));
    self_cancelled = wheel.Cancel(self);
    EXPECT_FALSE(wheel.Reschedule(self, 50));
    Note(&wheel, 30, &ran);
  });
  wheel.Advance(2000);
  EXPECT_FALSE(self_cancelled);
  EXPECT_THAT(ran, ElementsAre(9, 10, 30));
  EXPECT_EQ(wheel.CheckInvariants(), "");
}

// One that is due, and that a task of the same tick cancels or puts off, does not run.
TEST(WheelTest, DueEntriesCanStillBeCancelledAndRescheduled) {
  Wheel wheel(OptionsOf(8, /*keep_insertion_order=*/true));
  std::vector<Tick> ran;
  Wheel::Id second, third;
  wheel.Schedule(10, [&] {
    EXPECT_EQ(wheel.StateOf(second), Wheel::State::kDue);
    EXPECT_TRUE(wheel.Cancel(second));
    EXPECT_TRUE(wheel.Reschedule(third, 15));
  });
  second = Note(&wheel, 10, &ran);
  third = Note(&wheel, 10, &ran);
  Note(&wheel, 10, &ran);
  EXPECT_EQ(wheel.Advance(12), 2u);
  EXPECT_THAT(ran, ElementsAre(10));
  wheel.Advance(20);
  EXPECT_THAT(ran, ElementsAre(10, 15));
}

// A lock as PutOff sees it: `meanwhile` is what its holder does between the two looks at the claim.
struct LookedAtLock {
  bool taken = false;
  std::function<void()> meanwhile;

  bool IsTaken() const {
    if (meanwhile) meanwhile();
    return taken;
  }
};

TEST(WheelTest, PutOffHoldsOnlyIfNobodyCanHaveDecidedByTheEarlierDeadline) {
  TimerSlab slab;
  Wheel wheel(OptionsOf(512), &slab);
  std::vector<Tick> ran;
  const Wheel::Id id = Note(&wheel, 10, &ran);
  TimerEntry* const entry = slab.At(id.index);
  EXPECT_TRUE(entry->PutOff(id.generation, 20, LookedAtLock()));
  EXPECT_FALSE(entry->PutOff(id.generation, 9, LookedAtLock())) << "has to move";
  EXPECT_FALSE(entry->PutOff(id.generation + 1, 30, LookedAtLock())) << "is another's";
  wheel.Advance(15);
  EXPECT_THAT(ran, IsEmpty());
  int budget = 100;
  ASSERT_EQ(wheel.PopDue(20, &budget).index, id.index);
  // Popped, it can still be put off, and Start sees it.
  EXPECT_TRUE(entry->PutOff(id.generation, 30, LookedAtLock()));
  EXPECT_EQ(wheel.Start(id), nullptr);
  EXPECT_EQ(wheel.CheckInvariants(), "");
  ASSERT_EQ(wheel.PopDue(30, &budget).index, id.index);
  // Somebody holds the lock: he may have read the claim before, and may start it yet.
  EXPECT_FALSE(entry->PutOff(id.generation, 40, LookedAtLock{/*taken=*/true, nullptr}));
  ASSERT_TRUE(wheel.Reschedule(id, 30));
  ASSERT_EQ(wheel.PopDue(31, &budget).index, id.index);
  // Somebody had read the claim before, has started it since, and is gone.
  const auto start = [&] { entry->set_claim(id.generation, TimerEntry::kStarted); };
  EXPECT_FALSE(entry->PutOff(id.generation, 50, LookedAtLock{/*taken=*/false, start}));
  EXPECT_FALSE(entry->PutOff(id.generation, 50, LookedAtLock())) << "it is started";
}

TEST(WheelTest, AdvanceStopsAtMaxTasks) {
  Wheel wheel(OptionsOf(512));
  std::vector<Tick> ran;
  for (Tick deadline = 1; deadline <= 10; ++deadline) Note(&wheel, deadline, &ran);
  EXPECT_EQ(wheel.Advance(100, 4), 4u);
  EXPECT_EQ(wheel.now(), 4u);
  EXPECT_EQ(wheel.pending(), 6);
  EXPECT_EQ(wheel.Advance(100), 6u);
  EXPECT_EQ(wheel.now(), 100u);
}

// A flood in one slot is opened in slices, so that a lock around the wheel is held only briefly.
TEST(WheelTest, WorkIsDoneInSlices) {
  Wheel wheel(OptionsOf(8));
  constexpr int kFlood = 10000;
  for (int i = 0; i < kFlood; ++i) wheel.Schedule(4096 + i % 8, [] {});
  int slices = 0;
  int popped = 0;
  for (;;) {
    constexpr int kSlice = 100;
    int budget = kSlice;
    const Wheel::Id id = wheel.PopDue(5000, &budget);
    EXPECT_GT(budget, -2 * 16) << "more was touched than asked for and one round of lanes";
    if (id.generation == 0) {
      ASSERT_EQ(wheel.CheckInvariants(), "");
      if (budget > 0) break;
      ++slices;
      continue;
    }
    TimerTask* const task = wheel.Start(id);
    ASSERT_NE(task, nullptr);
    task->~TimerTask();
    wheel.Finish(id);
    ++popped;
  }
  EXPECT_EQ(popped, kFlood);
  EXPECT_GT(slices, kFlood / 200);
}

// What a caller with a lock may meet between PopDue and Start.
TEST(WheelTest, APoppedEntryMayBeCancelledOrRescheduled) {
  Wheel wheel(OptionsOf(512));
  std::vector<Tick> ran;
  const Wheel::Id a = Note(&wheel, 10, &ran);
  const Wheel::Id b = Note(&wheel, 10, &ran);
  int budget = 100;
  const Wheel::Id first = wheel.PopDue(10, &budget);
  const Wheel::Id second = wheel.PopDue(10, &budget);
  EXPECT_EQ(wheel.pending(), 2);
  EXPECT_TRUE(wheel.Cancel(first));
  EXPECT_EQ(wheel.Start(first), nullptr);
  EXPECT_TRUE(wheel.Reschedule(second, 20));
  EXPECT_EQ(wheel.Start(second), nullptr);
  wheel.Advance(20);
  EXPECT_THAT(ran, ElementsAre(20));
  EXPECT_EQ(wheel.StateOf(a), Wheel::State::kFree);
  EXPECT_EQ(wheel.StateOf(b), Wheel::State::kFree);
}

TEST(WheelTest, BitsOfSlotsThatACancelEmptiedAreNoEvents) {
  Wheel wheel(OptionsOf(512));
  std::vector<Wheel::Id> ids;
  for (Tick deadline = 1; deadline < 100000; deadline += 7) {
    ids.push_back(wheel.Schedule(deadline, [] {}));
  }
  for (const Wheel::Id& id : ids) wheel.Cancel(id);
  EXPECT_EQ(wheel.NextEvent(), Wheel::kNever);
  EXPECT_EQ(wheel.CheckInvariants(), "");
}

TEST(WheelTest, NothingIsAllocatedInsideATick) {
  Wheel wheel(OptionsOf(512));
  std::mt19937_64 random(1);
  std::vector<Wheel::Id> ids;
  ids.reserve(100000);
  for (int i = 0; i < 100000; ++i) ids.push_back(wheel.Schedule(random() % 1000000, [] {}));
  for (int i = 0; i < 50000; ++i) wheel.Reschedule(ids[i], random() % 1000000);
  const int64_t before = allocations;
  EXPECT_EQ(wheel.Advance(1000000), 100000u);
  EXPECT_EQ(allocations - before, 0);
}

TEST(WheelTest, TakePendingReturnsEveryTaskOnce) {
  Wheel wheel(OptionsOf(512));
  std::vector<int> ran(1000, 0);
  std::vector<Wheel::Id> ids;
  ids.reserve(1000);
  for (int i = 0; i < 1000; ++i) {
    ids.push_back(wheel.Schedule(1 + i * i, [&ran, i] { ++ran[i]; }));
  }
  wheel.Cancel(ids[500]);
  wheel.Advance(50 * 50);  // runs those with i < 50
  std::vector<TimerTask> tasks;
  uint32_t from = 0;
  while (wheel.TakePending(&from, 64, &tasks)) {
  }
  EXPECT_EQ(wheel.pending(), 0);
  EXPECT_EQ(tasks.size(), 1000u - 50 - 1);
  for (TimerTask& task : tasks) std::move(task)();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ran[i], i == 500 ? 0 : 1) << i;
}

TEST(WheelTest, MillionsPending) {
  Wheel wheel(OptionsOf(512));
  std::mt19937_64 random(7);
  int64_t ran = 0;
  Tick last = 0;
  constexpr int kTimers = 2000000;
  for (int i = 0; i < kTimers; ++i) {
    const Tick deadline = 1 + random() % 1000000;
    wheel.Schedule(deadline, [&, deadline] {
      ran += deadline == wheel.now() && deadline >= last;
      last = deadline;
    });
  }
  EXPECT_EQ(wheel.Advance(1000000), static_cast<size_t>(kTimers));
  EXPECT_EQ(ran, kTimers);
}

TEST(WheelTest, DestroysWhatIsPending) {
  auto held = std::make_shared<int>(0);
  {
    Wheel wheel(OptionsOf(512));
    wheel.Schedule(10, [held] {});
    wheel.Schedule(Wheel::kNever, [held] {});
    EXPECT_EQ(held.use_count(), 3);
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace failback
