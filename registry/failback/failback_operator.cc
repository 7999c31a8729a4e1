#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

agent::v1::OperationKind ToProto(OperationKind kind) {
  switch (kind) {
    case OperationKind::kRegister:
      return agent::v1::OPERATION_KIND_REGISTER;
    case OperationKind::kUnregister:
      return agent::v1::OPERATION_KIND_UNREGISTER;
    case OperationKind::kSubscribe:
      return agent::v1::OPERATION_KIND_SUBSCRIBE;
    case OperationKind::kUnsubscribe:
      return agent::v1::OPERATION_KIND_UNSUBSCRIBE;
  }
  return agent::v1::OPERATION_KIND_UNSPECIFIED;
}

}  // namespace

std::string Machine::PendingId(const Record& record) const {
  if (record.watch != nullptr) {
    return absl::StrCat(OperationName(record.kind()), " ", record.watch->name);
  }
  return absl::StrCat(OperationName(record.kind()), " ", CanonicalKeyText(record.key));
}

std::vector<agent::v1::PendingOperation> Machine::Pending(Moment now,
                                                          const PendingRange& range) const {
  std::vector<agent::v1::PendingOperation> rows;
  if (totals_.pending() + totals_.superseded() == 0 || range.most == 0) return rows;
  // The first of the range so far, a heap with the last of them on top.
  std::vector<std::pair<std::string, const Record*>> first;
  const auto add = [&](const Record& record) {
    if (!record.pending() && !record.superseded()) return;
    std::string id = PendingId(record);
    if (id < range.from) return;
    if (first.size() == range.most) {
      if (id >= first.front().first) return;
      std::pop_heap(first.begin(), first.end());
      first.pop_back();
    }
    first.emplace_back(std::move(id), &record);
    std::push_heap(first.begin(), first.end());
  };
  for (const auto& [key, record] : records_) add(*record);
  for (const auto& [selector, record] : watches_) add(*record);
  std::sort_heap(first.begin(), first.end());
  rows.reserve(first.size());
  for (auto& [id, record] : first) rows.push_back(PendingRow(now, std::move(id), *record));
  return rows;
}

agent::v1::PendingOperation Machine::PendingRow(Moment now, std::string id,
                                                const Record& record) const {
  const auto wall_at = [&](int64_t nanos) {
    return ToProto(now.wall + absl::Nanoseconds(nanos - now.nanos));
  };
  agent::v1::PendingOperation row;
  row.set_id(std::move(id));
  row.set_kind(ToProto(record.kind()));
  if (record.watch != nullptr) {
    row.set_subscription_id(record.watch->name);
    *row.mutable_selector() = record.watch->selector;
  } else {
    ParseCanonicalKey(record.key, row.mutable_key());
  }
  row.set_generation(record.generation);
  row.set_retry_times(record.superseded() ? -1 : options_.retry.retry_times);
  row.set_upstream(options_.upstream_name);
  *row.mutable_since() = wall_at(record.since_nanos);
  if (record.superseded()) row.set_times(record.superseded_times);
  if (record.retry != nullptr) row.set_times(record.retry->rule.times());
  if (!record.last_status.ok()) *row.mutable_last_status() = StatusToProto(record.last_status);
  if (record.superseded()) {
    row.set_state(agent::v1::PENDING_STATE_SUPERSEDED);
    if (superseded_alarm_.armed()) {
      *row.mutable_next_attempt() = wall_at(superseded_alarm_.due_nanos());
    }
  } else if (record.in_flight != 0) {
    row.set_state(agent::v1::PENDING_STATE_IN_FLIGHT);
  } else if (record.stage == Stage::kParked) {
    row.set_state(agent::v1::PENDING_STATE_PARKED);
  } else if (record.stage == Stage::kWaiting) {
    row.set_state(agent::v1::PENDING_STATE_WAITING);
    *row.mutable_next_attempt() = wall_at(record.retry->due.due_nanos());
  } else {
    row.set_state(agent::v1::PENDING_STATE_QUEUED);
  }
  return row;
}

agent::v1::UpstreamStatus Machine::UpstreamStatus(Moment now,
                                                  const FailbackStatistics& stats) const {
  agent::v1::UpstreamStatus status;
  const UpstreamMachine::State& session = upstream_.state();
  status.set_uri(options_.upstream_name);
  *status.mutable_since() = ToProto(session.since);
  *status.mutable_session_ttl() = session.info.ttl();
  status.set_epoch(session.info.epoch());
  status.set_store_id(session.info.store_id());
  const auto total = [](const FailbackStatistics::ByOperation<int64_t>& counts) {
    return static_cast<uint64_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  };
  status.set_desired(static_cast<uint64_t>(stats.desired));
  status.set_acknowledged(static_cast<uint64_t>(stats.acknowledged));
  status.set_pending(total(stats.pending));
  status.set_parked(total(stats.parked));
  status.set_superseded(static_cast<uint64_t>(stats.superseded));
  status.set_subscriptions(static_cast<uint64_t>(stats.subscriptions));
  status.set_state(stats.state);
  status.set_refused(stats.refused);
  if (stats.journal.has_value() && !stats.journal->error.ok()) {
    *status.mutable_journal_error() = StatusToProto(stats.journal->error);
    *status.mutable_journal_error_since() = ToProto(stats.journal->error_since);
  }
  if (stats.journal.has_value()) status.set_journal_damaged(stats.journal->damaged);
  if (stats.twins > 0) *status.mutable_twin_time() = ToProto(stats.twin_time);
  if (stats.lapsed_since.has_value()) {
    *status.mutable_lapsed_since() = ToProto(*stats.lapsed_since);
    *status.mutable_last_error() = StatusToProto(LapseReason());
  } else if (session.phase == UpstreamMachine::Phase::kDown || stats.refused ||
             (session.phase == UpstreamMachine::Phase::kClosing && !session.last_error.ok())) {
    *status.mutable_last_error() = StatusToProto(SessionError());
  }
  return status;
}

absl::StatusOr<std::vector<Machine::RecordPtr>> Machine::FindPending(
    const std::vector<std::string>& ids) const {
  absl::flat_hash_set<std::string> wanted(ids.begin(), ids.end());
  std::vector<RecordPtr> found;
  const auto look = [&](const RecordPtr& record) {
    if (!record->pending() && !record->superseded()) return;
    if (ids.empty() || wanted.erase(PendingId(*record)) > 0) found.push_back(record);
  };
  for (const auto& [key, record] : records_) look(record);
  for (const auto& [selector, record] : watches_) look(record);
  if (!wanted.empty()) {
    return absl::NotFoundError(
        absl::StrCat(Quoted(*std::min_element(wanted.begin(), wanted.end()), kMaxQuotedId),
                     " is not pending; `failbackctl pending` lists what is"));
  }
  return found;
}

void Machine::On(const input::Retry& in) {
  const auto found = FindPending(in.ids);
  if (!found.ok()) return Answer(in.ticket, found.status());
  int64_t retried = 0;
  for (const RecordPtr& record : *found) {
    const bool in_doubt = record->doubt != Doubt::kNone;
    // What may have been unregistered since is retried by name only.
    if (in_doubt && in.ids.empty()) continue;
    ++retried;
    if (in_doubt) {
      // An intent that is stated now, in the journal too.
      NewGeneration(record);
      continue;
    }
    if (record->stage == Stage::kParked && record->retry != nullptr) record->retry->rule.Rearm();
    Enqueue(record.get());
  }
  Answer(in.ticket, Counted{retried, 0});
}

void Machine::On(const input::Cancel& in) {
  const auto found = FindPending(in.ids);
  if (!found.ok()) return Answer(in.ticket, found.status());
  Counted counted;
  for (const RecordPtr& record : *found) {
    ++counted.count;
    if (CancelOne(record)) ++counted.sent;
  }
  Answer(in.ticket, counted);
}

bool Machine::CancelOne(const RecordPtr& record) {
  const absl::Status given_up = absl::CancelledError("given up by an operator");
  if (record->watch != nullptr) {
    CloseStream(record->watch.get());
    const auto subscribers = record->watch->subscribers;
    Emit(IntentEvent::Kind::kCancelled, *record, record->last_status);
    Erase(record, given_up);
    for (const auto& [id, subscriber] : subscribers) EndSubscription(subscriber, given_up);
    return false;
  }
  // The record stays, in the journal too, so that what the upstream holds under this key is left
  // alone, and a call in flight is still the only one.
  const bool sent = record->in_flight == record->generation;
  const absl::Status sent_before =
      absl::CancelledError("it had been sent, and may still take effect");
  Emit(IntentEvent::Kind::kCancelled, *record, sent ? sent_before : record->last_status);
  Resolve(record,
          sent ? absl::CancelledError(absl::StrCat(given_up.message(), "; ", sent_before.message()))
               : given_up);
  Move(record.get(), Stage::kGivenUp);
  EndCheck(record.get());
  record->touched = audit_serial_;
  EndDoubt(record.get());
  Persist(record);
  return sent;
}

}  // namespace failback
