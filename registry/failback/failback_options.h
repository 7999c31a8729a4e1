// The settings of a failback core, and what it reports of its intents: plain data.
//
// Thread safety: plain data. `random` is called by one thread at a time.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_OPTIONS_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/failback/intent_journal.h"
#include "registry/failback/status_policy.h"
#include "registry/model/messages.h"
#include "retry/backoff.h"
#include "retry/retry_rule.h"

namespace failback {

// How many of those that remain a drain names.
constexpr size_t kMaxDrainLeft = 16;

// What became of an intent, reported to FailbackRegistry::Options::on_event.
struct IntentEvent {
  enum class Kind {
    kAcknowledged,  // the upstream has it
    kRetrying,      // the first attempt of this intent failed, it is on the wheel
    kParked,        // out of retries, or refused for good
    // A later incarnation holds the key, or held it until lately. A registration is kept, and
    // claims the key when that one has gone; an unregister is done.
    kSuperseded,
    kCancelled,  // an operator gave it up; `status`: what it was pending for
    // Of the session, not of an intent (`id` is empty): it was not renewed for its TTL, so what was
    // acknowledged in it may be gone (`status`: why); and it is renewed, or another is open.
    kLapsed,
    kRenewed,
  };
  Kind kind;
  OperationKind operation;
  // As in PendingOperation.id.
  std::string id;
  // Of a register or an unregister.
  registry::v1::InstanceKey key;
  // Options::upstream_name of the registry that reports it.
  std::string upstream;
  uint64_t generation = 0;
  int times = 0;
  absl::Status status;
  // Of kParked: the registry has refused it, and would again.
  bool refused = false;
  // The trace of the call that stated the intent (registry/base/trace_context.h); empty: none.
  std::string traceparent;
};

// Of FailbackRegistry::Options, what the machine inside goes by.
struct FailbackOptions {
  // How the upstream is called in listings and messages.
  std::string upstream_name;
  // Names this life of the process to the upstream; empty: the one in `state_dir`, or a new
  // random one. A pod's UID is a good one. One that the upstream keeps for another caller is
  // replaced by a random one, for good with `state_dir`.
  std::string incarnation;
  // For people: shown at the registry.
  std::string client_name;
  // Lifetime of the upstream session without renewal.
  absl::Duration session_ttl = absl::Seconds(10);
  // Retries of single operations.
  RetryPolicy retry;
  // How often registrations that a later incarnation holds are tried again, give or take 15 %;
  // zero: only after a reconnect, by a new intent, or by Retry().
  absl::Duration superseded_period = absl::Seconds(30);
  // Probes while the upstream is unavailable.
  BackoffOptions reconnect{absl::Milliseconds(100), 2.0, absl::Milliseconds(1030), 0.2};
  // Retries of single operations that may leave in a second, over all, and at once. What is sent
  // again after a reconnect is bounded by the calls in flight instead.
  double retries_per_second = 2000;
  double retry_burst = 2000;
  // Calls in flight at the upstream, and items in one call; both at least 1.
  int max_calls_in_flight = 8;
  int max_batch = 250;
  // Bounds; what is beyond is refused with LIMIT_REACHED, which names the bound. Each at least 1.
  // Intents held at once. Where callers are distinguished, one of them has half at most, and so
  // have those that were stated without a session together (registry/model/shared_limit.h).
  int64_t max_records = 1000000;
  bool callers_have_names = false;
  // Intents and subscriptions that the upstream has not acknowledged. At the bound no new intent
  // is taken, but for an unregister of what is held, which leads back below it.
  int64_t max_pending = 1000000;
  // Selectors followed at the upstream, of which one caller has half at most; and local
  // subscribers of all of them.
  int64_t max_subscriptions = 10000;
  int64_t max_listeners = 100000;
  // Local sessions that are open at once; where callers are distinguished, one of them has a
  // quarter at most. And their longest TTL: one that is left open takes its place for so long.
  int64_t max_sessions = 10000;
  absl::Duration max_local_ttl = absl::Minutes(10);
  // How long subscribers are spared the news that the upstream is unavailable.
  absl::Duration stale_grace = absl::Seconds(1);
  // How long an empty snapshot after a non-empty one is held back before it is accepted.
  absl::Duration empty_snapshot_hold = absl::Seconds(5);
  // Between two comparisons of what the upstream holds with what it should; zero: never.
  absl::Duration anti_entropy_interval = absl::Minutes(1);
  // Uniform in [0, 1); for jitter.
  Random random;
  // What another registry of this process holds. Where set, it takes the place of what is in the
  // journal: intents that are not here are given up with an unregister, those that are are
  // stated.
  std::optional<std::vector<IntentJournal::Intent>> adopt;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_OPTIONS_H_
