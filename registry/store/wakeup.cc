#include "registry/store/wakeup.h"

#include <algorithm>
#include <utility>

#include "retry/clock.h"

namespace failback {

Wakeup::Wakeup(HashedWheelTimer* timer, std::function<void()> task)
    : timer_(timer), task_(std::move(task)) {}

int64_t Wakeup::Now() const { return timer_->clock()->NowNanos(); }

void Wakeup::Arm(absl::Duration delay) {
  MutexLock lock(&mu_);
  const int64_t due_nanos = Now() + absl::ToInt64Nanoseconds(delay);
  if (!due_nanos_.has_value() || due_nanos < *due_nanos_) SetDue(due_nanos);
}

void Wakeup::PutOff(absl::Duration delay) {
  MutexLock lock(&mu_);
  SetDue(Now() + absl::ToInt64Nanoseconds(delay));
}

void Wakeup::SetDue(int64_t due_nanos) {
  if (stopped_) return;
  const bool armed = due_nanos_.has_value();
  due_nanos_ = due_nanos;
  if (running_) return;  // Run goes on with it
  const absl::Duration delay = absl::Nanoseconds(std::max<int64_t>(due_nanos - Now(), 0));
  if (armed) {
    // If its time has just come, Run waits for the lock and finds that it is early.
    timeout_.Reschedule(delay);
    return;
  }
  auto timeout = timer_->NewTimeout([this] { Run(); }, delay);
  if (timeout.ok()) {
    timeout_ = *std::move(timeout);
  } else {
    due_nanos_.reset();
  }
}

void Wakeup::Run() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    due_nanos_.reset();
    running_ = true;
  }
  task_();
  MutexLock lock(&mu_);
  running_ = false;
  idle_.SignalAll();
  if (const auto due_nanos = std::exchange(due_nanos_, std::nullopt)) SetDue(*due_nanos);
}

void Wakeup::Stop() {
  Timeout timeout;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    timeout = std::move(timeout_);
    while (running_) idle_.Wait(&mu_);
  }
  if (timeout && !timeout.Cancel()) timeout.Wait();
}

}  // namespace failback
