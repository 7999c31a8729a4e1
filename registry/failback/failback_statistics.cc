// What the machine counts of itself.

#include "registry/failback/failback_statistics.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "registry/base/utf8.h"
#include "registry/base/version.h"
#include "registry/failback/failback_machine.h"

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

void Machine::CountAttempt(OperationKind kind, const absl::Status& status) {
  FailbackStatistics::ByCode& codes = counters_.attempts[static_cast<size_t>(kind)];
  const size_t code = static_cast<size_t>(status.code());
  ++codes[code < codes.size() ? code : static_cast<size_t>(absl::StatusCode::kUnknown)];
}

FailbackStatistics Machine::Stats(Moment now) const {
  FailbackStatistics stats;
  stats.upstream = options_.upstream_name;
  const UpstreamMachine::State& session = upstream_.state();
  stats.up = session.phase == UpstreamMachine::Phase::kUp;
  stats.refused = IsAgentRefused();
  stats.sessions_opened = static_cast<int64_t>(session.session_serial);
  stats.reconnects = static_cast<int64_t>(session.connection_serial);
  stats.twins = session.twins;
  stats.twin_time = session.twin_time;
  stats.lapsed_since = LapsedSince(now);
  stats.counters = counters_;
  stats.desired = totals_.desired();
  stats.acknowledged = stats.lapsed_since.has_value() ? 0 : totals_.acknowledged();
  stats.superseded = totals_.superseded();
  stats.pending = totals_.waiting();
  stats.parked = totals_.parked();
  stats.subscriptions = totals_.followed();
  stats.stale_subscriptions = totals_.stale();
  stats.oldest_pending = absl::Nanoseconds(now.nanos - totals_.oldest_nanos().value_or(now.nanos));
  stats.calls_in_flight = calls_in_flight_;
  stats.subscribers = static_cast<int64_t>(subscriptions_.size());
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

registry::v1::AgentReport Machine::Report() const {
  const auto total = [](const RecordTotals::ByOperation& counts) {
    return static_cast<uint64_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  };
  registry::v1::AgentReport report;
  report.set_name(options_.client_name);
  report.set_version(kVersion);
  report.set_intents(static_cast<uint64_t>(totals_.desired()));
  report.set_parked(total(totals_.parked()));
  report.set_pending(total(totals_.waiting()));
  report.set_superseded(static_cast<uint64_t>(totals_.superseded()));
  if (const std::optional<int64_t> oldest = totals_.oldest_nanos(); oldest.has_value()) {
    // In whole seconds: the same until another one is the oldest.
    const absl::Time since = now_.wall - absl::Nanoseconds(now_.nanos - *oldest);
    report.mutable_oldest_pending()->set_seconds(
        absl::ToUnixSeconds(since + absl::Milliseconds(500)));
  }
  if (!journal_error_.ok()) {
    std::string error = MadePrintable(std::string(journal_error_.message()), ' ');
    KeepEnd(&error);
    report.set_journal_error(std::move(error));
  }
  const UpstreamMachine::State& session = upstream_.state();
  if (session.twins > 0) {
    report.mutable_twin_time()->set_seconds(absl::ToUnixSeconds(session.twin_time));
  }
  return report;
}

}  // namespace failback
