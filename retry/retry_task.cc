#include "retry/retry_task.h"

#include <utility>

namespace failback {

RetryTask::RetryTask(HashedWheelTimer* timer, const RetryPolicy* policy, const Random* random)
    : timer_(timer), policy_(policy), random_(random) {}

RetryTask::~RetryTask() { timeout_.Cancel(); }

RetryTask::State RetryTask::Failed(std::optional<absl::Duration> server_delay, TimerTask on_due) {
  timeout_.Cancel();
  const std::optional<absl::Duration> delay = rule_.Failed(*policy_, server_delay, *random_);
  if (delay.has_value()) return Wait(*delay, std::move(on_due));
  return state_ = State::kParked;
}

RetryTask::State RetryTask::Wait(absl::Duration delay, TimerTask on_due) {
  timeout_.Cancel();
  next_attempt_nanos_ = timer_->clock()->NowNanos() + absl::ToInt64Nanoseconds(delay);
  auto timeout = timer_->ScheduleUnbounded(std::move(on_due), delay);
  if (!timeout.ok()) return state_ = State::kParked;
  timeout_ = *std::move(timeout);
  state_ = State::kWaiting;
  return state_;
}

bool RetryTask::Begin() {
  // A callback of an earlier timeout may come late, when a newer one is already waiting.
  if (state_ != State::kWaiting || !timeout_.IsExpired()) return false;
  state_ = State::kDue;
  return true;
}

void RetryTask::RunNow() {
  timeout_.Cancel();
  if (state_ == State::kParked) {
    rule_.Rearm();
  }
  state_ = State::kDue;
}

void RetryTask::Park() {
  timeout_.Cancel();
  rule_.Refused();
  state_ = State::kParked;
}

}  // namespace failback
