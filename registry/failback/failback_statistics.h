// What a FailbackRegistry counts of itself, as plain numbers: FailbackRegistry::Stats().
//
// Counters grow from the process's start; the rest is how things stand now. All is counted as it
// changes, under the core's lock, which is held anyway; taking the statistics costs the same for
// one record and for a hundred thousand.
//
// Example: a warning from the host's own monitoring.
//
//   for (const failback::FailbackStatistics& upstream : agent->Stats()) {
//     if (upstream.up && upstream.acknowledged == upstream.desired) continue;
//     Warn(upstream.upstream, upstream.oldest_pending);
//   }
//
// Thread safety: plain data.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_STATISTICS_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_STATISTICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "failback/agent/v1/agent.pb.h"
#include "registry/failback/intent_journal.h"
#include "retry/histogram.h"

namespace failback {

struct FailbackStatistics {
  // Indexed by OperationKind.
  template <typename T>
  using ByOperation = std::array<T, 4>;
  // Indexed by status code, 0 to 16.
  using ByCode = std::array<int64_t, 17>;

  struct Counters {
    // Attempts that have ended, by how. A subscription's attempt ends well when its stream begins.
    ByOperation<ByCode> attempts{};
    // Attempts that failed before they left, as the upstream was known to be unavailable.
    ByOperation<int64_t> unsent{};
    // Waits on the wheel, as they were begun.
    Histogram retry_delay_nanos{kWaitBoundsNanos};
    // From an intent's first failure to its acknowledgement.
    Histogram recovery_nanos{kWaitBoundsNanos};
  };

  // Options::upstream_name; in a group the member's name.
  std::string upstream;
  Counters counters;

  // The upstream session.
  bool up = false;  // the last probe or renewal succeeded
  agent::v1::UpstreamState state = agent::v1::UPSTREAM_STATE_UNSPECIFIED;
  bool refused = false;  // the upstream answers, and takes no session of this agent
  // Since when what was acknowledged in it may be gone: it was not renewed for its TTL, or is lost.
  // Then nothing counts as acknowledged, until it is renewed or sent again.
  std::optional<absl::Time> lapsed_since;
  int64_t sessions_opened = 0;
  int64_t reconnects = 0;
  // How often a new incarnation was taken as another process used the one before, and when last.
  int64_t twins = 0;
  absl::Time twin_time;

  // Instances that should be there, how many of them the upstream has acknowledged, and how many a
  // later incarnation holds.
  int64_t desired = 0;
  int64_t acknowledged = 0;
  int64_t superseded = 0;
  // Other intents that are not acknowledged; parked ones are not among the pending.
  ByOperation<int64_t> pending{};
  ByOperation<int64_t> parked{};
  // For how long the oldest of both has not been.
  absl::Duration oldest_pending;
  int64_t calls_in_flight = 0;

  int64_t subscriptions = 0;        // selectors that are followed
  int64_t stale_subscriptions = 0;  // whose subscribers have been notified
  int64_t subscribers = 0;          // local ones
  int64_t local_sessions = 0;
  bool draining = false;

  // With a state directory.
  std::optional<IntentJournal::Statistics> journal;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_STATISTICS_H_
