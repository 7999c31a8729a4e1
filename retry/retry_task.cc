#include "retry/retry_task.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace failback {

absl::Status ValidateRetryPolicy(const std::string& path, const RetryPolicy& policy) {
  if (policy.retry_times < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".retry_times: ", policy.retry_times, " is not -1 (for ever) or more"));
  }
  if (policy.retry_period.has_value() && *policy.retry_period <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ".retry_period: ", absl::FormatDuration(*policy.retry_period), " is not above zero"));
  }
  return ValidateBackoff(absl::StrCat(path, ".backoff"), policy.backoff);
}

RetryTask::RetryTask(HashedWheelTimer* timer, const RetryPolicy* policy, const Random* random)
    : timer_(timer), policy_(policy), random_(random) {}

RetryTask::~RetryTask() { timeout_.Cancel(); }

RetryTask::State RetryTask::Failed(std::optional<absl::Duration> server_delay, TimerTask on_due) {
  timeout_.Cancel();
  if (std::exchange(first_, false)) {
    if (policy_->retry_times == 0) {
      Park();
      return state_;
    }
  } else if (times_ == policy_->retry_times) {
    Park();
    return state_;
  } else {
    ++times_;
  }
  absl::Duration delay;
  refusals_ = server_delay.has_value() ? refusals_ : 0;
  if (server_delay.has_value()) {
    delay = StretchedDelay(*server_delay, refusals_, (*random_)());
  } else if (policy_->retry_period.has_value()) {
    delay = *policy_->retry_period;
  } else {
    delay = BackoffDelay(policy_->backoff, times_, (*random_)());
  }
  if (server_delay.has_value()) ++refusals_;
  return Wait(delay, std::move(on_due));
}

RetryTask::State RetryTask::Wait(absl::Duration delay, TimerTask on_due) {
  timeout_.Cancel();
  next_attempt_nanos_ = timer_->clock()->NowNanos() + absl::ToInt64Nanoseconds(delay);
  auto timeout = timer_->ScheduleUnbounded(std::move(on_due), delay);
  if (!timeout.ok()) {
    Park();
    return state_;
  }
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
    times_ = 1;
    refusals_ = 0;
    first_ = true;
  }
  state_ = State::kDue;
}

void RetryTask::Park() {
  timeout_.Cancel();
  state_ = State::kParked;
}

}  // namespace failback
