// Wheel: the timing wheel itself. No clock, no thread, no lock: time is a tick number that the
// caller moves on. HashedWheelTimer puts these three around it.
//
// Algorithm
// ---------
// Hashed hierarchical timing wheels (Varghese and Lauck, 1987). Level 0 has one slot for each of
// the next `ticks_per_wheel` ticks; a slot of level 1 spans all of level 0, a slot of level 2 all
// of level 1, and so on; each level above 0 has 256 slots. An entry sits at the level of the
// highest bit in which its deadline differs from the present tick:
//
//      deadline  0000 0011 | 0100 0000 | 0 0000 1001        level 0 reads the last 9 bits,
//      now       0000 0011 | 0011 1111 | 1 1111 0000        level 1 the 8 before them, ...
//                            ^ differs first here: level 1, slot 0100 0000
//
// When the present tick enters a slot of level 1 or above, the slot opens: its entries are put
// in again and land on lower levels. An entry moves at most once a level, and is not looked at
// in between; there are no rounds to count. Two properties follow from the rule: at each level
// only slots beyond the present one are in use, so that there is no wrap-around; and all of
// level 0 is due before any of level 1. The next event is thus the first set bit in a bitmap of
// occupied slots, and an idle wheel jumps to it instead of ticking.
//
// What makes it fast:
//   * An entry is one cache line of 64 bytes: 32 of links, deadline and state, and its task in
//     the other 32. Entries live in a TimerSlab, never move, and are linked by 32-bit index.
//   * A slot is `lanes` lists that are walked in turn, so that the memory of so many entries is
//     fetched at once. This is why the order within a tick is unspecified. A small wheel, whose
//     entries are in the cache anyway, has one: its slots take 9 KB and not 147 KB.
//   * Reschedule to a later deadline only writes it down; the entry moves when its old slot
//     opens. Renewing a lease touches one cache line, and needs no lock (TimerEntry::PutOff).
//   * Bits of slots that a cancel has emptied are cleared when they are next read.
//
// Example
// -------
//   Wheel wheel(Wheel::Options{});
//   Wheel::Id id = wheel.Schedule(100, [] { Hello(); });
//   wheel.Advance(99);                // runs nothing
//   wheel.Reschedule(id, 250);
//   wheel.Advance(1000);              // runs the task, at tick 250
//
// Contract
// --------
//   * An entry runs when the wheel has reached its deadline, never before, and in the order of
//     deadlines. Within one tick the order is unspecified, or that of Schedule and Reschedule
//     with `keep_insertion_order`, which sorts each tick's entries.
//   * A deadline that is not in the future means the next tick.
//   * A task may call any method of its own wheel except Advance, and must not throw. What it
//     schedules for a tick within the running Advance runs within it.
//   * An Id is good for ever: it names one entry, and when that is over every method says so.
//   * Schedule, Cancel and Reschedule are O(1); an entry is touched O(levels) times in its
//     life; memory is 64 bytes for each entry of the largest number that was ever pending.
//   * Nothing is allocated except by Schedule, when the wheel grows.
//
// Thread safety: none; one thread at a time. The task of a started entry may be run and destroyed
// without the caller's lock, and the holder of the Id may call TimerEntry::PutOff and
// TimerEntry::Withhold without it. A withheld entry stays where it is until Reclaim gets it back.
//
// Invariants (CheckInvariants)
//   1. The slot of a pending entry opens no later than the entry's deadline.
//   2. A slot with entries has its bit set, and lies beyond the present slot of its level, or is
//      the present one while it is being opened.
//   3. Every entry is in exactly one place: a lane of a slot (kPending), the buffer of due entries
//      (kDue), the caller's hands or its canceller's (kPopped, kStarted) or the free stack (kFree).
//   4. pending() counts those that are kPending, kDue and kPopped.

#ifndef FAILBACK_RETRY_WHEEL_H_
#define FAILBACK_RETRY_WHEEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/numeric/bits.h"
#include "retry/timer_slab.h"

namespace failback {

class Wheel {
 public:
  using Tick = uint64_t;
  using State = TimerEntry::State;

  // A deadline that is never reached. Greater ones mean the same.
  static constexpr Tick kNever = Tick{1} << 62;

  struct Options {
    int ticks_per_wheel = 512;          // slots of level 0; rounded up to a power of two
    bool keep_insertion_order = false;  // within one tick; costs a sort for each tick
    uint32_t first_generation = 1;      // Ids below it are none of this wheel's
    bool small = false;                 // thousands of entries rather than millions: one lane
  };

  // Names an entry. A generation is used once for an index, so a stale Id never matches.
  struct Id {
    uint32_t index = 0;
    uint32_t generation = 0;  // 0: no entry
  };

  // `slab` holds the entries and outlives the wheel; it serves one wheel at a time, and is cleared
  // when that is destroyed. nullptr: the wheel has its own.
  explicit Wheel(const Options& options, TimerSlab* slab = nullptr);
  ~Wheel();
  Wheel(const Wheel&) = delete;
  Wheel& operator=(const Wheel&) = delete;

  // The tick that the wheel has reached; 0 at first.
  Tick now() const { return now_; }
  int64_t pending() const { return pending_; }
  State StateOf(Id id) const { return Find(id) == nullptr ? State::kFree : Find(id)->state; }

  // Adds an entry; its TimerTask is made from `task`. The Id is empty if there is no memory;
  // `task` is then untouched.
  template <typename Task>
  Id Schedule(Tick deadline, Task&& task);

  // Ends an entry that has not been started, and destroys its task. Returns false if the entry is
  // started or over.
  bool Cancel(Id id);
  // As Cancel, and returns the task, for the caller to drop where dropping is safe; or an empty
  // one.
  TimerTask Take(Id id);

  // Gives an entry that has not been started another deadline. Returns false if it is started or
  // over.
  bool Reschedule(Id id, Tick deadline);

  // Runs what is due up to and including `to`, at most `max_tasks`. Returns how many ran; if
  // that is `max_tasks`, more may be due.
  size_t Advance(Tick to, size_t max_tasks = SIZE_MAX);

  // The tick at which there is something to do, for the wheel or the caller; kNever: nothing.
  // now(): call PopDue again.
  Tick NextEvent();

  // The steps of Advance, for a caller that holds a lock only between tasks:
  //
  //   while (Id id = PopDue(to, &budget)) { task = Start(id); unlock; run it; lock; Finish(id); }
  //
  // PopDue moves on towards `to`, to the first tick with a due entry, and takes one out. Each
  // entry that it touches takes one off `*budget`. Returns an empty Id when nothing is due, or
  // with `*budget` used up: then let others have the lock and call again.
  Id PopDue(Tick to, int* budget);
  // Marks a popped entry as started and returns its task, which stays where it is. nullptr: it was
  // cancelled or rescheduled meanwhile.
  TimerTask* Start(Id id);
  // Frees a started entry, whose task the caller has destroyed.
  void Finish(Id id) { Free(id.index, slab_->At(id.index)); }
  // True if PopDue has no further entry of this tick at hand; the last one waited longest.
  bool due_buffer_empty() const { return next_due_ == due_.size(); }

  // Ends entries that have not been started and appends their tasks to `*tasks`. Looks at up to
  // `max` entries from `*from` on, which starts at 0; returns false when it has seen all.
  bool TakePending(uint32_t* from, uint32_t max, std::vector<TimerTask>* tasks);

  // Frees up to `most` withheld entries that have come back. Returns how many; if that is `most`,
  // more may have.
  int Reclaim(CancelledEntries* cancelled, int most);

  // A generation that no Id of this wheel has reached; 0: there is none. Linear in entries.
  uint32_t NextGeneration() const;

  // Bytes of bookkeeping for an entry, its task not included: links, deadline and state, and its
  // place in the free stack.
  static constexpr size_t kEntryBytes = 36;

  // Describes the first violated invariant; empty if all hold. Linear in entries and slots.
  std::string CheckInvariants() const;

 private:
  static constexpr uint32_t kLanes = 16;  // of a wheel that is not small
  static constexpr int kLevelBits = 8;
  static constexpr uint32_t kLevelSlots = 1 << kLevelBits;
  static constexpr int kTickBits = 63;                  // deadlines go up to kNever, inclusive
  static constexpr uint32_t kHead = uint32_t{1} << 31;  // in TimerEntry::prev: a lane
  static constexpr size_t kDueBuffer = 128;
  static constexpr size_t kPrefetch = 8;

  // The entry of `id`, unless that is over. Entry 0 is the null entry: links that lead nowhere lead
  // to it, so that none need a test.
  TimerEntry* Find(Id id) const {
    if (ABSL_PREDICT_FALSE(id.index >= used_)) return nullptr;
    TimerEntry* const entry = slab_->At(id.index);
    return entry->generation() == id.generation && entry->state != State::kFree ? entry : nullptr;
  }

  int levels() const { return 1 + (kTickBits - level0_bits_ + kLevelBits - 1) / kLevelBits; }
  // The bits of a tick below those that `level` reads.
  int ShiftOf(int level) const { return level == 0 ? 0 : level0_bits_ + (level - 1) * kLevelBits; }
  uint32_t FirstSlotOf(int level) const {
    return level == 0 ? 0 : level0_room_ + (level - 1) * kLevelSlots;
  }
  uint32_t SlotsOf(int level) const { return level == 0 ? level0_room_ : kLevelSlots; }
  // The first tick of the span of `level` that the present tick is in.
  Tick BaseOf(int level) const {
    const int above = level == 0 ? level0_bits_ : ShiftOf(level) + kLevelBits;
    return above >= kTickBits ? 0 : (now_ >> above) << above;
  }
  // The slot of `level` that `tick` falls in.
  uint32_t SlotAt(int level, Tick tick) const {
    return level == 0 ? tick & level0_mask_
                      : FirstSlotOf(level) + ((tick >> ShiftOf(level)) & (kLevelSlots - 1));
  }
  uint32_t SlotFor(Tick deadline) const {
    const Tick differing = deadline ^ now_;
    if (differing <= level0_mask_) return deadline & level0_mask_;
    const uint32_t above =
        static_cast<uint32_t>(absl::bit_width(differing) - 1 - level0_bits_) / kLevelBits;
    return level0_room_ + above * kLevelSlots +
           ((deadline >> (level0_bits_ + above * kLevelBits)) & (kLevelSlots - 1));
  }

  uint32_t lanes() const { return lane_mask_ + 1; }
  // Of a slot, the first.
  uint32_t LaneOf(uint32_t slot) const { return slot << lane_bits_; }
  bool IsEmpty(uint32_t slot) const {
    if (lane_bits_ == 0) return heads_[slot] == 0;
    uint32_t any = 0;
    for (uint32_t lane = 0; lane < kLanes; ++lane) any |= heads_[slot * kLanes + lane];
    return any == 0;
  }

  Tick Clamp(Tick deadline) const {
    return deadline <= now_ ? now_ + 1 : deadline < kNever ? deadline : kNever;
  }

  // Puts the entry into the slot of its deadline.
  void Link(uint32_t index, TimerEntry* entry) {
    const uint32_t slot = SlotFor(entry->linked_deadline());
    const uint32_t lane = LaneOf(slot) + (index & lane_mask_);
    const uint32_t first = heads_[lane];
    entry->next = first;
    entry->prev = kHead | lane;
    slab_->At(first)->prev = index;
    heads_[lane] = index;
    occupied_[slot / 64] |= uint64_t{1} << (slot % 64);
  }

  void Unlink(TimerEntry* entry) {
    const uint32_t prev = entry->prev;
    const uint32_t next = entry->next;
    slab_->At(next)->prev = prev;
    // Whether `prev` is a lane cannot be predicted, not even by the processor: no branch.
    const uintptr_t lane =
        reinterpret_cast<uintptr_t>(&heads_[0]) + (prev & ~kHead) * sizeof(uint32_t);
    const uintptr_t before = slab_->AddressOf(prev & ~kHead) + offsetof(TimerEntry, next);
    const uintptr_t is_lane = -uintptr_t{prev >> 31};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): between pointers the compiler may put the branch back.
    *reinterpret_cast<uint32_t*>(before ^ ((before ^ lane) & is_lane)) = next;
  }

  // Takes an entry that has not been started out of its slot; nullptr: it is started or over.
  TimerEntry* Withdraw(Id id);

  // Gives the entry, which is settled or was never put off, another deadline and a place by it.
  void Place(uint32_t index, TimerEntry* entry, Tick deadline) {
    entry->set_deadline(deadline);
    entry->set_claim(entry->generation(), 0);
    entry->state = State::kPending;
    Link(index, entry);
  }

  // The task is destroyed, or about to be moved out.
  void Free(uint32_t index, TimerEntry* entry) {
    const uint32_t generation = entry->generation();
    entry->state = State::kFree;
    // An entry whose generations are used up is never used again.
    if (ABSL_PREDICT_FALSE(generation == UINT32_MAX)) return entry->set_claim(0, 0);
    entry->set_claim(generation + 1, 0);
    free_.push_back(index);
  }

  // Takes an entry that is not started out of its slot, if it is in one, and frees it.
  void Release(uint32_t index, TimerEntry* entry) {
    if (entry->state == State::kPending) Unlink(entry);
    --pending_;
    Free(index, entry);
  }

  bool Grow();  // makes room for more entries; false: there is no memory
  void MoveTo(Tick event);
  template <typename Each>
  void Drain(uint32_t slot, size_t max, Each each);
  void FillDue(int* budget);

  // Constant after construction.
  const int level0_bits_;
  const Tick level0_mask_;
  const uint32_t level0_room_;  // slots set aside for level 0: a multiple of 64
  const int lane_bits_;
  const uint32_t lane_mask_;
  const bool keep_insertion_order_;
  const uint32_t first_generation_;
  const std::unique_ptr<TimerSlab> own_slab_;
  TimerSlab* const slab_;

  Tick now_ = 0;
  int opening_ = 0;  // the highest level whose present slot may still hold entries
  int64_t pending_ = 0;
  uint64_t order_ = 0;

  struct FreeDeleter {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint32_t[], FreeDeleter> heads_;  // lanes() for each slot; 0: empty
  std::vector<uint64_t> occupied_;                  // a bit for each slot; may be set in vain

  // What Reclaim has taken from CancelledEntries and not freed yet.
  std::array<uint32_t, CancelledEntries::kLanes> reclaimed_ = {};

  std::vector<Id> due_;  // entries of the present tick, those before next_due_ popped
  size_t next_due_ = 0;

  uint32_t used_ = 0;           // entries that were ever used, the null entry too
  std::vector<uint32_t> free_;  // a stack; has room for all entries
};

template <typename Task>
Wheel::Id Wheel::Schedule(Tick deadline, Task&& task) {
  uint32_t index;
  TimerEntry* entry;
  uint32_t generation;
  const size_t free = free_.size();
  if (ABSL_PREDICT_TRUE(free != 0)) {
    index = free_[free - 1];
    free_.pop_back();
    if (free > kPrefetch) __builtin_prefetch(slab_->At(free_[free - 1 - kPrefetch]), 1);
    entry = slab_->At(index);
    generation = entry->generation();
  } else {
    if (ABSL_PREDICT_FALSE(used_ == slab_->room() || used_ == 0) && !Grow()) return Id{};
    index = used_++;
    entry = slab_->At(index);
    generation = first_generation_;
    entry->set_claim(generation, 0);
  }
  entry->set_deadline(Clamp(deadline));
  if (ABSL_PREDICT_FALSE(keep_insertion_order_)) entry->order = ++order_;
  entry->state = State::kPending;
  new (entry->task_bytes) TimerTask(std::forward<Task>(task));
  Link(index, entry);
  ++pending_;
  return Id{index, generation};
}

inline TimerEntry* Wheel::Withdraw(Id id) {
  TimerEntry* const entry = Find(id);
  if (entry == nullptr || entry->state == State::kStarted) return nullptr;
  if (entry->state == State::kPending) Unlink(entry);
  --pending_;
  return entry;
}

inline bool Wheel::Cancel(Id id) {
  TimerEntry* const entry = Withdraw(id);
  if (entry == nullptr) return false;
  entry->state = State::kStarted;  // as what the task holds may call the wheel when it goes
  entry->task().~TimerTask();
  Free(id.index, entry);
  return true;
}

inline TimerTask Wheel::Take(Id id) {
  TimerEntry* const entry = Withdraw(id);
  if (entry == nullptr) return nullptr;
  Free(id.index, entry);
  return std::move(entry->task());
}

inline bool Wheel::Reschedule(Id id, Tick deadline) {
  TimerEntry* const entry = Find(id);
  if (entry == nullptr || entry->state == State::kStarted) return false;
  const Tick clamped = Clamp(deadline);
  if (ABSL_PREDICT_FALSE(keep_insertion_order_)) entry->order = ++order_;
  if (entry->state == State::kPending) {
    const Tick later = clamped - entry->linked_deadline();  // huge if earlier
    if (later <= TimerEntry::kMostLater) {
      entry->set_claim(id.generation, later);  // moves when its slot opens
      return true;
    }
    Unlink(entry);
  }
  Place(id.index, entry, clamped);
  return true;
}

inline TimerTask* Wheel::Start(Id id) {
  TimerEntry* const entry = Find(id);
  if (entry == nullptr || entry->state != State::kPopped) return nullptr;
  // In one order with PutOff: it was there before this, or finds the lock taken.
  while (ABSL_PREDICT_FALSE(!entry->Start(id.generation))) {
    if (!entry->Settle()) return nullptr;  // comes back by Reclaim
    if (entry->linked_deadline() > now_) {
      entry->state = State::kPending;  // its claim may be another already
      Link(id.index, entry);
      return nullptr;
    }
  }
  entry->state = State::kStarted;
  --pending_;
  return &entry->task();
}

inline Wheel::Id Wheel::PopDue(Tick to, int* budget) {
  for (;;) {
    while (next_due_ < due_.size()) {
      const Id id = due_[next_due_++];
      --*budget;
      TimerEntry* const entry = Find(id);
      if (entry == nullptr || entry->state != State::kDue) continue;  // cancelled, rescheduled
      entry->state = State::kPopped;
      return id;
    }
    if (*budget <= 0) return Id{};
    const Tick event = NextEvent();
    if (event > to) {
      if (to > now_) now_ = to;
      return Id{};
    }
    if (event > now_) MoveTo(event);
    FillDue(budget);
  }
}

}  // namespace failback

#endif  // FAILBACK_RETRY_WHEEL_H_
