#include "retry/hashed_wheel_timer.h"

#include <atomic>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "retry/cycle_clock.h"
#include "retry/timer_core.h"

namespace failback {
namespace internal_timer {

// --- Adding.

// Adds between two looks at what was cancelled without the lock.
constexpr int kReclaimEvery = 64;

bool Core::TakeCredit(bool bounded) {
  const int64_t bound = options.max_pending_timeouts;
  if (credits_taken.fetch_add(1, std::memory_order_relaxed) < bound || !bounded) return true;
  credits_taken.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

absl::Status Core::Refusal(bool stopped) const {
  if (stopped) return absl::FailedPreconditionError(absl::StrCat(options.name, ": is stopped"));
  return absl::ResourceExhaustedError(absl::StrCat(options.name, ": no memory for a timeout"));
}

absl::StatusOr<Timeout> Core::Add(TimerTask&& task, absl::Duration delay, bool bounded) {
  if (ABSL_PREDICT_FALSE(task == nullptr)) {
    return absl::InvalidArgumentError("task: must not be empty");
  }
  if (ABSL_PREDICT_FALSE(has_thread && !driver_started.load(std::memory_order_acquire))) {
    const absl::Status status = StartDriver();
    if (!status.ok()) return status;
  }
  if (options.max_pending_timeouts != 0 && !TakeCredit(bounded)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.name, ": ", options.max_pending_timeouts,
                     " timeouts are pending, as many as max_pending_timeouts allows"));
  }
  const Tick tick = TickAfter(delay);
  Shard* const shard = MyShard();
  Wheel::Id id;
  bool stopped;
  bool wake = false;
  {
    SpinLockHolder lock(&shard->lock);
    stopped = shard->stopped;
    if (ABSL_PREDICT_TRUE(!stopped)) {
      if (ABSL_PREDICT_FALSE(!shard->wheel.has_value())) MakeWheel(shard);
      if (ABSL_PREDICT_FALSE(--shard->until_reclaim < 0)) {
        shard->until_reclaim = kReclaimEvery;
        shard->Reclaim(kSlice);
      }
      id = shard->wheel->Schedule(tick, std::move(task));
      ++shard->scheduled;
      if (tick < shard->wake_tick) {
        shard->wake_tick = tick;
        wake = true;
      }
    }
  }
  if (ABSL_PREDICT_FALSE(id.generation == 0)) {
    ReturnCredit();
    return Refusal(stopped);
  }
  if (ABSL_PREDICT_FALSE(wake)) Wake();
  return Timeout(shard, id.index, id.generation);
}

}  // namespace internal_timer

using internal_timer::Core;
using internal_timer::kSlice;
using internal_timer::RunningTask;
using internal_timer::Shard;

// --- Timeout. A shard without a timer, or with another, has no entry of the handle's generation.

bool Timeout::Cancel() {
  if (ABSL_PREDICT_FALSE(generation_ == 0)) return false;
  TimerTask task;  // destroyed after the lock is released
  if (shard_->IsMine()) {
    SpinLockHolder lock(&shard_->lock);
    if (!shard_->wheel.has_value()) return false;
    task = shard_->wheel->Take({index_, generation_});
    if (task == nullptr) return false;
    ++shard_->cancelled;
    shard_->core.load(std::memory_order_relaxed)->ReturnCredit();
  } else {
    TimerEntry* const entry = shard_->slab.At(index_);
    if (!entry->Withhold(generation_)) return false;
    task = std::move(entry->task());
    entry->task().~TimerTask();
    // The timer does not end before the entry is back.
    shard_->core.load(std::memory_order_relaxed)->ReturnCredit();
    shard_->withheld.Push(index_, entry);
  }
  generation_ = 0;
  return true;
}

bool Timeout::IsExpired() const {
  if (generation_ == 0) return false;
  SpinLockHolder lock(&shard_->lock);
  if (!shard_->wheel.has_value()) return true;
  const Wheel::State state = shard_->wheel->StateOf({index_, generation_});
  return state == Wheel::State::kFree || state == Wheel::State::kStarted;
}

bool Timeout::Reschedule(absl::Duration delay) {
  if (ABSL_PREDICT_FALSE(generation_ == 0)) return false;
  // To a later deadline without the lock, where the clock can be read without the timer.
  if (shard_->has_real_clock.load(std::memory_order_relaxed)) {
    TimerEntry* const entry = shard_->slab.At(index_);
    __builtin_prefetch(entry, 1);  // while the clock is read
    const Wheel::Tick tick = shard_->scale.Get().After(CycleClock::CeilingNanos(), delay);
    if (entry->PutOff(generation_, tick, shard_->lock)) return true;
  }
  SpinLockHolder lock(&shard_->lock);
  if (!shard_->wheel.has_value()) return false;
  Core* const core = shard_->core.load(std::memory_order_relaxed);
  const Wheel::Tick tick = core->TickAfter(delay);
  if (!shard_->wheel->Reschedule({index_, generation_}, tick)) return false;
  core->WakeFor(shard_, tick);
  return true;
}

void Timeout::Wait() {
  if (generation_ == 0) return;
  for (const RunningTask* task = internal_timer::running_task; task != nullptr;
       task = task->outer) {
    if (task->shard == shard_ && task->id.index == index_ && task->id.generation == generation_) {
      return;
    }
  }
  shard_->WaitWhile([this] {
    SpinLockHolder lock(&shard_->lock);
    return shard_->wheel.has_value() &&
           shard_->wheel->StateOf({index_, generation_}) == Wheel::State::kStarted;
  });
}

// --- HashedWheelTimer.

absl::StatusOr<std::unique_ptr<HashedWheelTimer>> HashedWheelTimer::Create(Options options) {
  if (options.clock == nullptr) return absl::InvalidArgumentError("clock: must not be null");
  if (!(options.tick_duration >= absl::Microseconds(1) &&
        options.tick_duration <= absl::Hours(1))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tick_duration: ", absl::FormatDuration(options.tick_duration), "; allowed: 1us to 1h"));
  }
  if (options.ticks_per_wheel < 1 || options.ticks_per_wheel > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("ticks_per_wheel: ", options.ticks_per_wheel, "; allowed: 1 to 65536"));
  }
  if (options.max_pending_timeouts < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_pending_timeouts: ", options.max_pending_timeouts, "; allowed: 0 (no limit) and up"));
  }
  Clock* const clock = options.clock;
  auto core = std::make_shared<Core>(std::move(options), clock->DrivesTimers());
  clock->Attach(core);
  return std::unique_ptr<HashedWheelTimer>(new HashedWheelTimer(std::move(core)));
}

HashedWheelTimer::HashedWheelTimer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

HashedWheelTimer::~HashedWheelTimer() { core_->Stop(!internal_timer::InTaskOf(core_.get())); }

absl::StatusOr<Timeout> HashedWheelTimer::NewTimeout(TimerTask task, absl::Duration delay) {
  return core_->Add(std::move(task), delay, /*bounded=*/true);
}

absl::StatusOr<Timeout> HashedWheelTimer::ScheduleUnbounded(TimerTask task, absl::Duration delay) {
  return core_->Add(std::move(task), delay, /*bounded=*/false);
}

absl::StatusOr<std::vector<TimerTask>> HashedWheelTimer::Stop() {
  if (internal_timer::InTaskOf(core_.get())) {
    return absl::FailedPreconditionError(
        absl::StrCat(core_->options.name, ": Stop called from one of the timer's own tasks"));
  }
  return core_->Stop(/*wait=*/true);
}

int64_t HashedWheelTimer::pending() const { return Stats().pending; }

HashedWheelTimer::Statistics HashedWheelTimer::Stats() const {
  Statistics sum;
  int64_t worst = 0;
  for (Shard* shard : core_->shards) {
    SpinLockHolder lock(&shard->lock);
    // As many as may be withheld by now, however fast others come.
    int64_t left = shard->wheel.has_value() ? shard->wheel->pending() : 0;
    for (int count; left > 0 && (count = shard->Reclaim(kSlice)) > 0; left -= count) {
      shard->lock.Unlock();  // lets a producer in
      shard->lock.Lock();
    }
    if (shard->wheel.has_value()) sum.pending += shard->wheel->pending();
    sum.scheduled += shard->scheduled;
    sum.fired += shard->fired;
    sum.cancelled += shard->cancelled;
    sum.failed += shard->failed;
    worst = std::max(worst, shard->worst_lateness_nanos);
    sum.lateness += shard->lateness;
  }
  sum.worst_lateness = absl::Nanoseconds(worst);
  return sum;
}

const Clock* HashedWheelTimer::clock() const { return core_->options.clock; }

int64_t HashedWheelTimer::RunDue(int64_t max_tasks) {
  const std::shared_ptr<Core> core = core_;  // a task may destroy the timer
  return core->RunDueTasks(max_tasks);
}

std::optional<int64_t> HashedWheelTimer::NextDueNanos() const { return core_->NextDueNanos(); }

}  // namespace failback
