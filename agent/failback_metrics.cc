#include "agent/failback_metrics.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "registry/failback/status_policy.h"

namespace failback {
namespace {

constexpr std::pair<agent::v1::UpstreamState, const char*> kStates[] = {
    {agent::v1::UPSTREAM_STATE_CONNECTING, "connecting"},
    {agent::v1::UPSTREAM_STATE_READY, "ready"},
    {agent::v1::UPSTREAM_STATE_RESYNCING, "resyncing"},
    {agent::v1::UPSTREAM_STATE_DRAINING, "draining"},
};

void CollectUpstream(const FailbackStatistics& stats, MetricFamilies* out) {
  const MetricFamilies::Labels labels = {{"upstream", stats.upstream}};
  out->Gauge("failback_agent_upstream_up", "1 while the session at the upstream is alive.",
             stats.up ? 1 : 0, labels);
  out->Gauge("failback_agent_upstream_refused",
             "1 while the upstream answers and refuses this agent's token or certificate.",
             stats.refused ? 1 : 0, labels);
  for (const auto& [state, name] : kStates) {
    out->Gauge("failback_agent_upstream_state", "1 for the state that the upstream is in.",
               stats.state == state ? 1 : 0, {{"upstream", stats.upstream}, {"state", name}});
  }
  out->Gauge("failback_agent_session_lapsed",
             "1 while the session has not been renewed for its TTL, or is lost.",
             stats.lapsed_since.has_value() ? 1 : 0, labels);
  out->Counter("failback_agent_sessions_opened_total",
               "Sessions opened again at the upstream; each leads to a resync.",
               stats.sessions_opened, labels);
  out->Counter("failback_agent_reconnects_total", "Probes that succeeded after a failed one.",
               stats.reconnects, labels);
  out->Counter("failback_agent_twins_total",
               "How often a new incarnation was taken, as another process used the one before.",
               stats.twins, labels);
  out->Gauge("failback_agent_calls_in_flight", "Calls to the upstream under way.",
             stats.calls_in_flight, labels);
}

void CollectIntents(const FailbackStatistics& stats, MetricFamilies* out) {
  const MetricFamilies::Labels labels = {{"upstream", stats.upstream}};
  out->Gauge("failback_agent_registrations_desired", "Instances that should be registered.",
             stats.desired, labels);
  out->Gauge("failback_agent_registrations_acknowledged",
             "Instances that should be registered and that the upstream has acknowledged.",
             stats.acknowledged, labels);
  out->Gauge("failback_agent_superseded",
             "Instances that should be registered and whose key a later incarnation holds.",
             stats.superseded, labels);
  out->Gauge("failback_agent_oldest_pending_seconds",
             "For how long the oldest intent has not been acknowledged, parked ones included.",
             absl::ToDoubleSeconds(stats.oldest_pending), labels);
  out->Gauge("failback_agent_subscriptions", "Selectors followed at the upstream.",
             stats.subscriptions, labels);
  out->Gauge("failback_agent_subscriptions_stale",
             "Selectors whose subscribers are notified that the list may be old.",
             stats.stale_subscriptions, labels);
  out->Gauge("failback_agent_subscribers", "Local subscribers of all selectors.", stats.subscribers,
             labels);
}

void CollectOperations(const FailbackStatistics& stats, MetricFamilies* out) {
  for (size_t kind = 0; kind < stats.pending.size(); ++kind) {
    const std::string operation(OperationName(static_cast<OperationKind>(kind)));
    const MetricFamilies::Labels labels = {{"upstream", stats.upstream}, {"operation", operation}};
    out->Gauge("failback_agent_operations_pending",
               "Intents on their way: queued, in flight or waiting on the wheel.",
               stats.pending[kind], labels);
    out->Gauge("failback_agent_operations_parked",
               "Intents that are not tried any more: out of retries, or refused for good.",
               stats.parked[kind], labels);
    out->Counter("failback_agent_attempts_unsent_total",
                 "Attempts that failed unsent, as the upstream was known to be unavailable.",
                 stats.counters.unsent[kind], labels);
    for (size_t code = 0; code < stats.counters.attempts[kind].size(); ++code) {
      const int64_t count = stats.counters.attempts[kind][code];
      if (count == 0 && code != 0) continue;
      out->Counter("failback_agent_attempts_total", "Attempts that have ended, by status code.",
                   count,
                   {{"upstream", stats.upstream},
                    {"operation", operation},
                    {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
    }
  }
}

void CollectJournal(const FailbackStatistics& stats, MetricFamilies* out) {
  if (!stats.journal.has_value()) return;
  const MetricFamilies::Labels labels = {{"upstream", stats.upstream}};
  out->Gauge("failback_agent_journal_size_bytes", "Size of the intent journal's files.",
             stats.journal->bytes, labels);
  out->Gauge("failback_agent_journal_writable",
             "1, or 0 when the intent journal could last not be written.",
             stats.journal->error.ok() ? 1 : 0, labels);
  out->Gauge("failback_agent_journal_damaged",
             "1 while a damaged intent journal is kept aside in the state directory.",
             stats.journal->damaged.empty() ? 0 : 1, labels);
  out->Histogram("failback_agent_journal_write_duration_seconds",
                 "How long a group of intents took to be journalled.", stats.journal->write_nanos,
                 MetricFamilies::kNanosPerSecond, labels);
  out->Histogram("failback_agent_journal_group_intents", "Intents journalled together.",
                 stats.journal->group_intents, MetricFamilies::kItems, labels);
}

}  // namespace

void CollectFailback(const FailbackStatistics& stats, MetricFamilies* out) {
  CollectUpstream(stats, out);
  CollectIntents(stats, out);
  CollectOperations(stats, out);
  const MetricFamilies::Labels labels = {{"upstream", stats.upstream}};
  out->Histogram("failback_agent_retry_delay_seconds",
                 "How long failed attempts wait on the wheel before the next.",
                 stats.counters.retry_delay_nanos, MetricFamilies::kNanosPerSecond, labels);
  out->Histogram("failback_agent_recovery_seconds",
                 "From an intent's first failure to its acknowledgement.",
                 stats.counters.recovery_nanos, MetricFamilies::kNanosPerSecond, labels);
  CollectJournal(stats, out);
}

}  // namespace failback
