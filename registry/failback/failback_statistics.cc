// What FailbackRegistry counts of itself.

#include "registry/failback/failback_statistics.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "registry/base/utf8.h"
#include "registry/base/version.h"
#include "registry/failback/failback_core.h"

namespace failback {
namespace {

constexpr size_t kMaxReportedError = 128;

// The file's path comes first, the cause last.
void KeepEnd(std::string* error) {
  constexpr char kCut[] = "…";
  if (error->size() <= kMaxReportedError) return;
  size_t begin = error->size() - (kMaxReportedError - sizeof(kCut) + 1);
  while (begin < error->size() && (static_cast<unsigned char>((*error)[begin]) & 0xC0) == 0x80) {
    ++begin;
  }
  *error = absl::StrCat(kCut, error->substr(begin));
}

}  // namespace

void FailbackRegistry::Core::CountAttempt(OperationKind kind, const absl::Status& status) {
  FailbackStatistics::ByCode& codes = counters_.attempts[static_cast<size_t>(kind)];
  const size_t code = static_cast<size_t>(status.code());
  ++codes[code < codes.size() ? code : static_cast<size_t>(absl::StatusCode::kUnknown)];
}

FailbackStatistics FailbackRegistry::Core::Stats(UpstreamSession::State* state) const {
  FailbackStatistics stats;
  stats.upstream = options_.upstream_name;
  if (journal_ != nullptr) stats.journal = journal_->Stats();

  MutexLock lock(&mu_);
  const UpstreamSession::State session = session_->state();
  if (state != nullptr) *state = session;
  stats.up = session.phase == UpstreamSession::Phase::kUp;
  stats.refused = session.refused();
  stats.sessions_opened = static_cast<int64_t>(session.session_serial);
  stats.reconnects = static_cast<int64_t>(session.connection_serial);
  stats.twins = session.twins;
  stats.twin_time = session.twin_time;
  stats.lapsed_since = LapsedSince(session);
  stats.counters = counters_;
  stats.desired = totals_.desired();
  stats.acknowledged = stats.lapsed_since.has_value() ? 0 : totals_.acknowledged();
  stats.superseded = totals_.superseded();
  stats.pending = totals_.waiting();
  stats.parked = totals_.parked();
  stats.subscriptions = totals_.followed();
  stats.stale_subscriptions = totals_.stale();
  const int64_t now = NowNanos();
  stats.oldest_pending = absl::Nanoseconds(now - totals_.oldest_nanos().value_or(now));
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

registry::v1::AgentReport FailbackRegistry::Core::Report() const {
  const FailbackStatistics stats = Stats();
  const auto total = [](const FailbackStatistics::ByOperation<int64_t>& counts) {
    return static_cast<uint64_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  };
  registry::v1::AgentReport report;
  report.set_name(options_.client_name);
  report.set_version(kVersion);
  report.set_intents(static_cast<uint64_t>(stats.desired));
  report.set_parked(total(stats.parked));
  report.set_pending(total(stats.pending));
  report.set_superseded(static_cast<uint64_t>(stats.superseded));
  if (report.pending() + report.parked() > 0) {
    // In whole seconds: the same until another one is the oldest.
    const absl::Time since = options_.timer->clock()->WallNow() - stats.oldest_pending;
    report.mutable_oldest_pending()->set_seconds(
        absl::ToUnixSeconds(since + absl::Milliseconds(500)));
  }
  if (stats.journal.has_value() && !stats.journal->error.ok()) {
    std::string error = MadePrintable(std::string(stats.journal->error.message()), ' ');
    KeepEnd(&error);
    report.set_journal_error(std::move(error));
  }
  if (stats.twins > 0)
    report.mutable_twin_time()->set_seconds(absl::ToUnixSeconds(stats.twin_time));
  return report;
}

}  // namespace failback
