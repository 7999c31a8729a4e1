#include "retry/retry_rule.h"

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

std::optional<absl::Duration> RetryRule::Failed(const RetryPolicy& policy,
                                                std::optional<absl::Duration> server_delay,
                                                const Random& random) {
  ++times_;
  if (policy.retry_times >= 0 && times_ > policy.retry_times) return std::nullopt;
  if (server_delay.has_value()) return StretchedDelay(*server_delay, refusals_++, random());
  refusals_ = 0;
  if (policy.retry_period.has_value()) return *policy.retry_period;
  return BackoffDelay(policy.backoff, times_, random());
}

}  // namespace failback
