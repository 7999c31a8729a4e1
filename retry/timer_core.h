// The inside of HashedWheelTimer: its shards, and the core that they and the handles share.
// Internal to the timer.
//
// A Core is what outlives the HashedWheelTimer, for the task that destroys it; a Shard outlives
// both, for the handles. hashed_wheel_timer.cc has what callers wait for (adding, cancelling,
// rescheduling), timer_core.cc the rest: making, running, driving and stopping.
//
// Thread safety: as HashedWheelTimer.

#ifndef FAILBACK_RETRY_TIMER_CORE_H_
#define FAILBACK_RETRY_TIMER_CORE_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "retry/clock.h"
#include "retry/cycle_clock.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/histogram.h"
#include "retry/mutex.h"
#include "retry/spin_lock.h"
#include "retry/ticks.h"
#include "retry/timer_slab.h"
#include "retry/wheel.h"

namespace failback {
namespace internal_timer {

using Tick = Wheel::Tick;

// A wheel with its lock. Each thread schedules on one shard, so that producers rarely meet.
//
// Shards are never freed: a handle may outlive its timer, and finds here that its entry is over.
// A timer takes its shards from a pool and gives them back; generations go on where the last
// timer's ended, so that an old handle never matches a new entry.
struct alignas(128) Shard {
  // Whether the calling thread schedules here. A guess, right as long as a timer has the shard.
  inline bool IsMine() const;

  // For Reschedule without the lock: whether it may, and how to know the tick.
  std::atomic<bool> has_real_clock{false};
  // Which of its timer's shards it is, and the mask of their numbers.
  std::atomic<uint32_t> number{0};
  std::atomic<uint32_t> mask{0};
  std::atomic<Core*> core{nullptr};  // changed under the lock; nullptr: no timer has this shard
  SharedTickScale scale;
  TimerSlab slab;

  CancelledEntries withheld;  // by threads whose shard this is not

  alignas(128) SpinLock lock;
  std::optional<Wheel> wheel ABSL_GUARDED_BY(lock);  // made for the first timeout
  bool stopped ABSL_GUARDED_BY(lock) = false;
  int until_reclaim ABSL_GUARDED_BY(lock) = 0;  // of Adds
  // The driver sleeps until this tick, or until it is woken, or who drives it by hand was told it;
  // 0: it will be looked at.
  Tick wake_tick ABSL_GUARDED_BY(lock) = 0;
  int running ABSL_GUARDED_BY(lock) = 0;
  int waiters ABSL_GUARDED_BY(lock) = 0;
  uint32_t first_generation ABSL_GUARDED_BY(lock) = 1;

  int64_t scheduled ABSL_GUARDED_BY(lock) = 0;
  int64_t fired ABSL_GUARDED_BY(lock) = 0;
  int64_t cancelled ABSL_GUARDED_BY(lock) = 0;
  int64_t failed ABSL_GUARDED_BY(lock) = 0;
  int64_t worst_lateness_nanos ABSL_GUARDED_BY(lock) = 0;
  Histogram lateness ABSL_GUARDED_BY(lock){kLatencyBoundsNanos};

  // Frees what was cancelled without the lock, up to `most`; returns how many.
  int Reclaim(int most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
    if (!wheel.has_value()) return 0;
    const int count = wheel->Reclaim(&withheld, most);
    cancelled += count;
    return count;
  }

  // For those who wait for a task to end: signalled whenever one has and `waiters` is not 0.
  Mutex ended_mu;
  CondVar ended;

  // Returns when `running()`, which takes the lock, is false.
  template <typename Running>
  void WaitWhile(Running running) {
    MutexLock ended_lock(&ended_mu);
    {
      SpinLockHolder holder(&lock);
      ++waiters;
    }
    while (running()) ended.Wait(&ended_mu);
    SpinLockHolder holder(&lock);
    --waiters;
  }
};

// Of the calling thread, another for each.
inline uint32_t MyNumber() {
  static std::atomic<uint32_t> threads{0};
  thread_local uint32_t mine = UINT32_MAX;
  if (ABSL_PREDICT_FALSE(mine == UINT32_MAX)) {
    mine = threads.fetch_add(1, std::memory_order_relaxed) & (UINT32_MAX >> 1);
  }
  return mine;
}

bool Shard::IsMine() const {
  return (MyNumber() & mask.load(std::memory_order_relaxed)) ==
         number.load(std::memory_order_relaxed);
}

// Entries that are touched while a shard's lock is held: what a producer may have to wait for.
constexpr int kSlice = 128;

// Which task a thread is in; a task that drives another timer is in two.
struct RunningTask {
  const Core* core;
  const Shard* shard;
  Wheel::Id id;
  const RunningTask* outer;
};
extern thread_local const RunningTask* running_task;

struct Core final : public ClockDriven, public std::enable_shared_from_this<Core> {
  Core(HashedWheelTimer::Options options, bool simulated);
  ~Core() override;

  Tick NowTick() const { return scale.At(options.clock->NowNanos()); }
  // Of a deadline, for which an upper bound of the time will do.
  Tick TickAfter(absl::Duration delay) const {
    return scale.After(has_real_clock ? CycleClock::CeilingNanos() : options.clock->NowNanos(),
                       delay);
  }

  // Of the calling thread.
  Shard* MyShard() const { return shards[MyNumber() & shard_mask]; }
  void MakeWheel(Shard* shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->lock);
  absl::StatusOr<Timeout> Add(TimerTask&& task, absl::Duration delay, bool bounded);
  bool TakeCredit(bool bounded);
  absl::Status Refusal(bool stopped) const;
  void ReturnCredit() {
    if (options.max_pending_timeouts != 0) credits_taken.fetch_sub(1, std::memory_order_relaxed);
  }

  // When a shard next has something to do.
  static Tick NextEventOf(Shard* shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->lock) {
    return shard->stopped || !shard->wheel.has_value() ? Wheel::kNever : shard->wheel->NextEvent();
  }

  // Runs tasks up to now, at most `max_tasks`, in due-tick order across shards.
  int64_t RunDueTasks(int64_t max_tasks);
  // Runs one shard's tasks up to `to`; returns when it next has something to do.
  Tick RunShard(Shard* shard, Tick to, int64_t max_tasks, int64_t* ran);
  // Runs the task of an entry that was popped, unless it was cancelled meanwhile. Has the lock
  // before and after, not between.
  inline void RunEntry(Shard* shard, Wheel::Id id, int64_t due_nanos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->lock);
  // Runs and destroys `task`. Returns false if it threw.
  inline bool RunTask(Shard* shard, Wheel::Id id, TimerTask* task) const;
  void Report(const char* what) const;

  // ClockDriven.
  std::optional<int64_t> NextDueNanos() override;
  bool TakeSooner() override {
    return sooner.load(std::memory_order_relaxed) && sooner.exchange(false);
  }
  int64_t RunDue() override { return RunDueTasks(std::numeric_limits<int64_t>::max()); }

  absl::Status StartDriver();
  void Drive();
  void Wake();
  // If the driver sleeps until after `tick`.
  void WakeFor(Shard* shard, Tick tick) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->lock) {
    if (ABSL_PREDICT_TRUE(tick >= shard->wake_tick)) return;
    shard->wake_tick = tick;
    Wake();
  }
  // `wait`: for running tasks to end.
  std::vector<TimerTask> Stop(bool wait);

  // Constant after construction.
  const HashedWheelTimer::Options options;
  const TickScale scale;  // tick 0 is when the timer was made
  const bool has_thread;
  const bool has_real_clock;
  std::vector<Shard*> shards;  // their number is a power of two
  uint32_t shard_mask = 0;

  // Own synchronization.
  std::atomic<int64_t> credits_taken{0};  // counted if there is a bound
  std::atomic<bool> driver_started{false};
  std::atomic<bool> stopping{false};
  std::atomic<bool> sooner{true};  // see ClockDriven; set when a shard's wake_tick goes down

  Mutex stop_mu;  // one Stop at a time
  bool stop_done ABSL_GUARDED_BY(stop_mu) = false;

  Mutex mu;
  CondVar woken_cv;
  bool woken ABSL_GUARDED_BY(mu) = false;
  std::thread driver ABSL_GUARDED_BY(mu);
};

// Whether this thread is in a task of `core`.
bool InTaskOf(const Core* core);

}  // namespace internal_timer
}  // namespace failback

#endif  // FAILBACK_RETRY_TIMER_CORE_H_
