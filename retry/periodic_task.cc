#include "retry/periodic_task.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "retry/mutex.h"

namespace failback {
namespace {

int64_t SaturatingAdd(int64_t a, int64_t b) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  return b > kMax - a ? kMax : a + b;
}

}  // namespace

struct PeriodicTask::State {
  State(HashedWheelTimer* timer, int64_t period_nanos, std::function<void()> work)
      : timer(timer), period_nanos(period_nanos), work(std::move(work)) {}

  HashedWheelTimer* const timer;
  const int64_t period_nanos;
  const std::function<void()> work;
  std::atomic<int64_t> runs{0};

  Mutex mu;
  CondVar ended;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  std::thread::id running ABSL_GUARDED_BY(mu);  // whose thread the work is on; none: not running
  int64_t due_nanos ABSL_GUARDED_BY(mu) = 0;    // of the run that waits
  Timeout timeout ABSL_GUARDED_BY(mu);
};

absl::StatusOr<std::unique_ptr<PeriodicTask>> PeriodicTask::Start(HashedWheelTimer* timer,
                                                                  absl::Duration period,
                                                                  std::function<void()> work) {
  return Start(timer, period, period, std::move(work));
}

absl::StatusOr<std::unique_ptr<PeriodicTask>> PeriodicTask::Start(HashedWheelTimer* timer,
                                                                  absl::Duration first_delay,
                                                                  absl::Duration period,
                                                                  std::function<void()> work) {
  if (period < absl::Nanoseconds(1) || period == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("period: ", absl::FormatDuration(period), "; must be positive and finite"));
  }
  auto state = std::make_shared<State>(timer, absl::ToInt64Nanoseconds(period), std::move(work));
  {
    MutexLock lock(&state->mu);
    state->due_nanos = SaturatingAdd(timer->clock()->NowNanos(),
                                     std::max<int64_t>(absl::ToInt64Nanoseconds(first_delay), 0));
    absl::StatusOr<Timeout> timeout = timer->NewTimeout([state] { Run(state); }, first_delay);
    if (!timeout.ok()) return timeout.status();
    state->timeout = *std::move(timeout);
  }
  return std::unique_ptr<PeriodicTask>(new PeriodicTask(std::move(state)));
}

PeriodicTask::PeriodicTask(std::shared_ptr<State> state) : state_(std::move(state)) {}
PeriodicTask::~PeriodicTask() { Stop(); }

int64_t PeriodicTask::runs() const { return state_->runs.load(std::memory_order_relaxed); }

void PeriodicTask::Stop() {
  // The waiting task, and all that its closure holds, goes outside the lock.
  Timeout timeout;
  {
    MutexLock lock(&state_->mu);
    state_->stopped = true;
    timeout = std::move(state_->timeout);
  }
  timeout.Cancel();
  MutexLock lock(&state_->mu);
  while (state_->running != std::thread::id() && state_->running != std::this_thread::get_id()) {
    state_->ended.Wait(&state_->mu);
  }
}

void PeriodicTask::Run(const std::shared_ptr<State>& state) {
  {
    MutexLock lock(&state->mu);
    if (state->stopped) return;
    state->running = std::this_thread::get_id();
  }
  // However the work ends, the next run is scheduled. An exception goes on to the timer, which
  // counts it.
  struct ScheduleNext {
    const std::shared_ptr<State>& state;
    ~ScheduleNext() {
      MutexLock lock(&state->mu);
      state->running = std::thread::id();
      state->ended.SignalAll();
      if (state->stopped) return;
      const int64_t now = state->timer->clock()->NowNanos();
      const int64_t period = state->period_nanos;
      const int64_t missed = std::max<int64_t>(now - state->due_nanos, 0) / period;
      state->due_nanos = SaturatingAdd(state->due_nanos + missed * period, period);
      absl::StatusOr<Timeout> timeout = state->timer->ScheduleUnbounded(
          [state = state] { Run(state); }, absl::Nanoseconds(state->due_nanos - now));
      if (timeout.ok()) state->timeout = *std::move(timeout);
    }
  } schedule_next{state};
  state->runs.fetch_add(1, std::memory_order_relaxed);
  state->work();
}

}  // namespace failback
