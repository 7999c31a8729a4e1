#include "retry/timer_slab.h"

#include <atomic>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "retry/spin_lock.h"

namespace failback {
namespace {

TEST(TimerSlabTest, EntriesStayWhereTheyAreAndAreZeroAfterClear) {
  TimerSlab slab;
  ASSERT_TRUE(slab.Grow());
  const uint32_t first_room = slab.room();
  TimerEntry* const entry = slab.At(first_room - 1);
  entry->set_claim(7, 0);
  ASSERT_TRUE(slab.Grow());
  EXPECT_EQ(slab.room(), 2 * first_room);
  EXPECT_EQ(slab.At(first_room - 1), entry);
  EXPECT_EQ(slab.AddressOf(first_room - 1), reinterpret_cast<uintptr_t>(entry));
  EXPECT_EQ(slab.At(first_room)->generation(), 0u);
  slab.Clear(2 * first_room);
  EXPECT_EQ(slab.At(first_room - 1), entry);
  EXPECT_EQ(entry->generation(), 0u) << "and may still be looked at";
}

TEST(TimerSlabTest, FewThatWereUsedAreZeroAfterClear) {
  TimerSlab slab;
  ASSERT_TRUE(slab.Grow());
  for (uint32_t index = 0; index < 5; ++index) {
    TimerEntry* const entry = slab.At(index);
    entry->next = entry->prev = index;
    entry->order = 9;
    entry->state = TimerEntry::State::kPopped;
    entry->set_deadline(1000);
    entry->set_claim(7, 3);
  }
  slab.Clear(5);
  for (uint32_t index = 0; index < 5; ++index) {
    const TimerEntry* const entry = slab.At(index);
    EXPECT_EQ(entry->claim.load(), 0u);
    EXPECT_EQ(entry->linked_deadline(), 0u);
    EXPECT_EQ(entry->next, 0u);
    EXPECT_EQ(entry->prev, 0u);
    EXPECT_EQ(entry->order, 0u);
    EXPECT_EQ(entry->state, TimerEntry::State::kFree);
  }
}

// Deadline and claim are two words. Were an entry put off between the writes of the two, it would
// be so by what was added to the deadline too much.
TEST(TimerSlabTest, AnEntryThatIsBeingSettledIsNotPutOff) {
  constexpr uint32_t kGeneration = 3;
  TimerSlab slab;
  ASSERT_TRUE(slab.Grow());
  TimerEntry* const entry = slab.At(1);
  entry->set_deadline(1000);
  entry->set_claim(kGeneration, 0);
  const SpinLock free;
  ASSERT_TRUE(entry->PutOff(kGeneration, 1005, free));
  uint32_t later = 0;
  ASSERT_TRUE(entry->BeginSettle(&later));
  EXPECT_EQ(later, 5u);
  EXPECT_FALSE(entry->PutOff(kGeneration, 1010, free));
  entry->EndSettle(later);
  EXPECT_EQ(entry->linked_deadline(), 1005u);
  EXPECT_EQ(entry->later(), 0u) << "the refused one has left nothing behind";
  EXPECT_TRUE(entry->PutOff(kGeneration, 1010, free));
  EXPECT_TRUE(entry->Settle());
  EXPECT_EQ(entry->linked_deadline(), 1010u);
  ASSERT_TRUE(entry->PutOff(kGeneration, 1020, free));
  EXPECT_FALSE(entry->Start(kGeneration)) << "it was put off";
  EXPECT_FALSE(entry->Withhold(kGeneration + 1));
  ASSERT_TRUE(entry->Withhold(kGeneration));
  EXPECT_FALSE(entry->PutOff(kGeneration, 1030, free));
  EXPECT_FALSE(entry->Settle());
  EXPECT_FALSE(entry->Start(kGeneration));
  EXPECT_FALSE(entry->Withhold(kGeneration));
}

// One thread puts an entry off, as the owner of its handle; another settles it all the time, as the
// driver does when a slot opens. What PutOff says it has set is the deadline from then on.
TEST(TimerSlabTest, WhatPutOffHasSetIsTheDeadlineWhoeverSettles) {
  constexpr int kHeld = 1000000;
  constexpr uint32_t kGeneration = 3;
  TimerSlab slab;
  ASSERT_TRUE(slab.Grow());
  TimerEntry* const entry = slab.At(1);
  entry->set_deadline(1000);
  entry->set_claim(kGeneration, 0);
  SpinLock lock;
  std::atomic<bool> done{false};
  std::thread driver([&] {
    std::minstd_rand random(2);
    while (!done) {
      for (int pause = random() % 64; pause > 0 && !done; --pause) {
      }
      SpinLockHolder holder(&lock);
      entry->Settle();
    }
  });
  std::minstd_rand random(1);
  int held = 0;
  int wrong = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (held < kHeld && absl::Now() < deadline) {
    const uint64_t tick = entry->linked_deadline() + random() % 3;
    if (!entry->PutOff(kGeneration, tick, lock)) continue;
    ++held;
    SpinLockHolder holder(&lock);
    wrong += entry->linked_deadline() + entry->later() != tick;
  }
  done = true;
  driver.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(held, kHeld);
}

}  // namespace
}  // namespace failback
