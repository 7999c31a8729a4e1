// What FailbackRegistry counts of itself.

#include "registry/failback_statistics.h"

#include <algorithm>

#include "registry/failback_core.h"

namespace failback {

void FailbackRegistry::Core::CountAttempt(OperationKind kind, const absl::Status& status) {
  FailbackStatistics::ByCode& codes = counters_.attempts[static_cast<size_t>(kind)];
  const size_t code = static_cast<size_t>(status.code());
  ++codes[code < codes.size() ? code : static_cast<size_t>(absl::StatusCode::kUnknown)];
}

FailbackStatistics FailbackRegistry::Core::Stats() const {
  FailbackStatistics stats;
  stats.upstream = options_.upstream_name;
  const UpstreamSession::State session = session_->state();
  stats.up = session.phase == UpstreamSession::Phase::kUp;
  stats.sessions_opened = static_cast<int64_t>(session.session_serial);
  stats.reconnects = static_cast<int64_t>(session.connection_serial);
  if (journal_ != nullptr) stats.journal = journal_->Stats();

  MutexLock lock(&mu_);
  stats.counters = counters_;
  const int64_t now = NowNanos();
  int64_t oldest = now;
  const auto count = [&](const Record& record) {
    const auto kind = static_cast<size_t>(record.kind());
    if (!record.pending()) return;
    ++(record.parked() ? stats.parked : stats.pending)[kind];
    oldest = std::min(oldest, record.since_nanos);
  };
  for (const auto& [key, record] : records_) {
    count(*record);
    if (!record->present || record->given_up) continue;
    ++stats.desired;
    if (!record->pending()) ++stats.acknowledged;
  }
  for (const auto& [selector, record] : watches_) {
    count(*record);
    if (!record->present) continue;
    ++stats.subscriptions;
    if (record->watch->set.stale()) ++stats.stale_subscriptions;
  }
  stats.oldest_pending = absl::Nanoseconds(now - oldest);
  stats.calls_in_flight = calls_in_flight_;
  stats.subscribers = listeners_;
  stats.local_sessions = static_cast<int64_t>(sessions_.size());
  stats.draining = draining_;
  if (draining_) {
    stats.state = agent::v1::UPSTREAM_STATE_DRAINING;
  } else if (!stats.up) {
    stats.state = agent::v1::UPSTREAM_STATE_CONNECTING;
  } else {
    stats.state =
        resyncing_ ? agent::v1::UPSTREAM_STATE_RESYNCING : agent::v1::UPSTREAM_STATE_READY;
  }
  return stats;
}

}  // namespace failback
