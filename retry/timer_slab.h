// TimerSlab: the memory of a wheel's entries, and what may be done to one without the wheel's lock.
//
// Choose it for objects that are named by index and generation from many threads and recycled
// millions of times a second. Entries live in chunks that never move and are never unmapped: an
// entry that once existed can be looked at for ever, and shows by its generation whether it is
// still the one that was meant. So a handle may outlive its timer, and PutOff needs no lock.
//
// Thread safety: At, TimerEntry::PutOff and TimerEntry::Withhold from any thread, for an index that
// Grow had made room for when it was passed on; the two by one thread at a time for each entry, the
// owner of its handle. CancelledEntries::Push from any thread. All else: one thread at a time, by
// the caller's lock.

#ifndef FAILBACK_RETRY_TIMER_SLAB_H_
#define FAILBACK_RETRY_TIMER_SLAB_H_

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace failback {

using TimerTask = absl::AnyInvocable<void() &&>;

// Runs `task`, which stays where it is, to be destroyed only.
inline void RunTimerTask(TimerTask& task) { std::move(task)(); }

// One cache line: 32 bytes of links, deadline and state, and the task in the other 32.
struct alignas(64) TimerEntry {
  enum class State : uint8_t {
    kFree,     // the Id is over
    kPending,  // in a slot
    kDue,      // its tick has come; waits for PopDue
    kPopped,   // popped, not yet started
    kStarted,  // runs, until Finish
  };

  // A claim is a generation and a number of ticks: "I am the entry of this generation, and due so
  // many ticks after `deadline`". It is one word, so that a compare-and-set that succeeds has
  // changed the entry that was meant. Three numbers stand for "do not touch without the lock".
  static constexpr uint32_t kStarted = UINT32_MAX;
  static constexpr uint32_t kSettling = UINT32_MAX - 1;
  static constexpr uint32_t kWithheld = UINT32_MAX - 2;  // its canceller has the task
  static constexpr uint64_t kMostLater = UINT32_MAX - 3;

  static uint64_t Claim(uint32_t generation, uint64_t later) {
    return uint64_t{generation} << 32 | later;
  }
  uint32_t generation() const { return claim.load(std::memory_order_relaxed) >> 32; }
  uint32_t later() const { return static_cast<uint32_t>(claim.load(std::memory_order_relaxed)); }

  uint64_t linked_deadline() const { return deadline.load(std::memory_order_relaxed); }
  void set_deadline(uint64_t tick) { deadline.store(tick, std::memory_order_relaxed); }
  void set_claim(uint32_t generation, uint64_t later) {
    claim.store(Claim(generation, later), std::memory_order_release);
  }

  // Sets the deadline to `tick` with a compare-and-set, if that is possible without moving the
  // entry: it is of this generation and not started, and `tick` is not before the deadline by
  // which it is linked. False if it is not possible, or if a holder of the wheel's `lock` may have
  // decided by the earlier claim: the caller then asks the wheel, under the lock.
  template <typename Lock>
  bool PutOff(uint32_t generation, uint64_t tick, const Lock& lock) {
    uint64_t expected = claim.load(std::memory_order_acquire);
    const uint64_t later = tick - linked_deadline();  // huge if earlier
    if (expected >> 32 != generation || static_cast<uint32_t>(expected) > kMostLater) return false;
    if (later > kMostLater) return false;
    const uint64_t desired = Claim(generation, later);
    if (!claim.compare_exchange_strong(expected, desired)) return false;
    // Who starts an entry takes the lock and then reads the claim; here the claim is written and
    // then the lock looked at. All four are in one order, so one of the two sees the other. If the
    // starter has read the earlier claim and already left, its own is there now.
    return !lock.IsTaken() && claim.load() == desired;
  }

  // Takes the entry away from whoever would start it, without the lock: after true it is never
  // started, and the task is the caller's, who then passes the entry to CancelledEntries. False: it
  // is of another generation, or started.
  bool Withhold(uint32_t generation) {
    uint64_t expected = claim.load(std::memory_order_acquire);
    for (;;) {
      const auto later = static_cast<uint32_t>(expected);
      if (expected >> 32 != generation || later == kStarted || later == kWithheld) return false;
      if (later == kSettling) {  // a few instructions, unless their thread has lost its processor
        sched_yield();
        expected = claim.load(std::memory_order_acquire);
      } else if (claim.compare_exchange_weak(expected, Claim(generation, kWithheld))) {
        return true;
      }
    }
  }

  // For a holder of the lock: from now on it is started. False, and nothing has changed: it was put
  // off, or its canceller has it.
  bool Start(uint32_t generation) {
    uint64_t expected = Claim(generation, 0);
    return claim.compare_exchange_strong(expected, Claim(generation, kStarted));
  }

  // Adds to the deadline what PutOff put it off by, for a holder of the lock that is about to
  // decide by it. False: its canceller has it.
  bool Settle() {
    if (later() == 0) return true;
    uint32_t later = 0;
    if (!BeginSettle(&later)) return false;
    EndSettle(later);
    return true;
  }
  // In between deadline and claim do not belong together, and the claim says so to the two above.
  bool BeginSettle(uint32_t* later) {
    uint64_t expected = claim.load(std::memory_order_acquire);
    do {
      *later = static_cast<uint32_t>(expected);
      if (*later == kWithheld) return false;
    } while (!claim.compare_exchange_weak(expected, Claim(generation(), kSettling)));
    return true;
  }
  void EndSettle(uint32_t later) {
    set_deadline(linked_deadline() + later);
    set_claim(generation(), 0);
  }

  TimerTask& task() { return *std::launder(reinterpret_cast<TimerTask*>(task_bytes)); }
  // In the place of a task that was moved out and destroyed.
  uint32_t& link() { return *std::launder(reinterpret_cast<uint32_t*>(task_bytes)); }

  uint32_t next;                   // in the lane; 0: none
  uint32_t prev;                   // the entry before, or Wheel::kHead | lane
  std::atomic<uint64_t> deadline;  // by which it is linked: not before its slot opens
  std::atomic<uint64_t> claim;
  uint64_t order : 56;  // of Schedule and Reschedule, if the wheel keeps it
  State state : 8;
  alignas(TimerTask) unsigned char task_bytes[sizeof(TimerTask)];
};
static_assert(sizeof(TimerEntry) == 64 && offsetof(TimerEntry, task_bytes) == 32);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class TimerSlab {
 public:
  static constexpr uint32_t kMaxEntries = uint32_t{1} << 27;

  TimerSlab() = default;
  ~TimerSlab();
  TimerSlab(const TimerSlab&) = delete;
  TimerSlab& operator=(const TimerSlab&) = delete;

  TimerEntry* At(uint32_t index) const {
    return chunks_[index >> kChunkBits] + (index & (kChunkEntries - 1));
  }
  // The address as a number, also of an index beyond room() that is not to be looked at.
  uintptr_t AddressOf(uint32_t index) const {
    return reinterpret_cast<uintptr_t>(chunks_[index >> kChunkBits]) +
           (index & (kChunkEntries - 1)) * sizeof(TimerEntry);
  }

  // How many entries there are.
  uint32_t room() const { return room_; }
  // Adds a chunk of them, all zero; false: there is no memory.
  bool Grow();
  // All entries are zero again, but for what no one looks at before it is written, and stay where
  // they are. Their memory goes back to the system, unless only the first `used` were used and these
  // are few.
  void Clear(uint32_t used);

 private:
  static constexpr uint32_t kChunkBits = 15;
  static constexpr uint32_t kChunkEntries = 1 << kChunkBits;
  static constexpr size_t kChunkBytes = kChunkEntries * sizeof(TimerEntry);  // a huge page
  static constexpr uint32_t kFew = 256;

  uint32_t room_ = 0;
  TimerEntry* chunks_[kMaxEntries / kChunkEntries] = {};
};

// Withheld entries on their way back to a holder of the lock, who takes them out of their slots. A
// canceller that took the lock would have its memory, and that of what it guards, sent to and fro
// with every cancel; here it touches the entry alone, and this line, which the holder looks at now
// and then. Lanes, as in a slot: so that the memory of many entries is on its way at once.
class alignas(64) CancelledEntries {
 public:
  static constexpr int kLanes = 16;

  // `entry` is withheld, and its task destroyed.
  void Push(uint32_t index, TimerEntry* entry) {
    std::atomic<uint32_t>& lane = lanes_[index % kLanes];
    new (entry->task_bytes) uint32_t(lane.load(std::memory_order_relaxed));
    while (!lane.compare_exchange_weak(entry->link(), index, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    }
  }

  // All of a lane, linked by `link`; 0: none.
  uint32_t Take(int lane) {
    if (lanes_[lane].load(std::memory_order_relaxed) == 0) return 0;
    return lanes_[lane].exchange(0, std::memory_order_acquire);
  }

 private:
  std::array<std::atomic<uint32_t>, kLanes> lanes_ = {};
};
static_assert(sizeof(CancelledEntries) == 64);

}  // namespace failback

#endif  // FAILBACK_RETRY_TIMER_SLAB_H_
