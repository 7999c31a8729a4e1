// When a failed call is tried again: the rule of Dubbo's AbstractRetryTask, without a timer.
//
// FailedRegisteredTask and its siblings follow it: `times` counts the attempts that have failed;
// one that fails after `retry_times` retries parks the task. So exactly `retry_times` retries
// follow the first failed call. -1 retries for ever, 0 parks at once.
// Beyond Dubbo: what is parked can be re-armed, the wait is capped exponential with full jitter
// unless a fixed `retry_period` is set, and a delay that the server asks for overrides both.
//
// Example: a call has failed.
//
//   RetryRule rule;
//   const std::optional<absl::Duration> wait = rule.Failed(policy, std::nullopt, random);
//   if (!wait.has_value()) Park();
//
// Thread safety: thread-compatible.
//
// Invariants:
// 1. 0 <= times; retry_times >= 0 implies times <= retry_times + 1, of attempts not refused for
// good.

#ifndef FAILBACK_RETRY_RETRY_RULE_H_
#define FAILBACK_RETRY_RETRY_RULE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "retry/backoff.h"

namespace failback {

struct RetryPolicy {
  // Retries after the first failed call; -1 for ever, 0 for none.
  int retry_times = -1;
  // Fixed wait between attempts, as Dubbo's (whose default is 5 s). Unset: `backoff`.
  std::optional<absl::Duration> retry_period;
  BackoffOptions backoff;
};

// INVALID_ARGUMENT naming the field, its value and what is allowed.
absl::Status ValidateRetryPolicy(const std::string& path, const RetryPolicy& policy);

class RetryRule {
 public:
  // An attempt failed. How long to wait until the next; nullopt: there is none, park.
  // `server_delay` is how long the server asked to wait; it is stretched when it comes several
  // times in a row (StretchedDelay).
  std::optional<absl::Duration> Failed(const RetryPolicy& policy,
                                       std::optional<absl::Duration> server_delay,
                                       const Random& random);

  // An attempt was refused for good: there is no other.
  void Refused() { ++times_; }

  // It has all its retries again.
  void Rearm() { *this = RetryRule(); }

  // The attempt that failed last, from 1; 0 before the first has ended.
  int times() const { return times_; }

 private:
  int times_ = 0;
  int refusals_ = 0;  // with a delay of the server's, in a row
};

}  // namespace failback

#endif  // FAILBACK_RETRY_RETRY_RULE_H_
