#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/failback/failback_core.h"
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

std::string FailbackRegistry::Core::PendingId(const Record& record) const {
  if (record.watch != nullptr) {
    return absl::StrCat(OperationName(record.kind()), " ", record.watch->name);
  }
  return absl::StrCat(OperationName(record.kind()), " ", CanonicalKeyText(record.key));
}

std::vector<agent::v1::PendingOperation> FailbackRegistry::Core::Pending() const {
  std::vector<agent::v1::PendingOperation> rows;
  {
    MutexLock lock(&mu_);
    if (totals_.pending() + totals_.superseded() == 0) return rows;
    const int64_t now = NowNanos();
    const absl::Time wall = options_.timer->clock()->WallNow();
    const auto add = [&](const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      if (!record.pending() && !record.superseded()) return;
      agent::v1::PendingOperation& row = rows.emplace_back();
      row.set_id(PendingId(record));
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
      *row.mutable_since() = ToProto(wall - absl::Nanoseconds(now - record.since_nanos));
      if (record.superseded()) row.set_times(record.superseded_times);
      if (record.retry != nullptr) row.set_times(record.retry->times());
      if (!record.last_status.ok()) *row.mutable_last_status() = StatusToProto(record.last_status);
      if (record.superseded()) {
        row.set_state(agent::v1::PENDING_STATE_SUPERSEDED);
        if (IsArmed(superseded_timer_)) {
          *row.mutable_next_attempt() =
              ToProto(wall + absl::Nanoseconds(superseded_due_nanos_ - now));
        }
      } else if (record.in_flight != 0) {
        row.set_state(agent::v1::PENDING_STATE_IN_FLIGHT);
      } else if (record.stage == Stage::kParked) {
        row.set_state(agent::v1::PENDING_STATE_PARKED);
      } else if (record.stage == Stage::kWaiting) {
        row.set_state(agent::v1::PENDING_STATE_WAITING);
        *row.mutable_next_attempt() =
            ToProto(wall + absl::Nanoseconds(record.retry->next_attempt_nanos() - now));
      } else {
        row.set_state(agent::v1::PENDING_STATE_QUEUED);
      }
    };
    for (const auto& [key, record] : records_) add(*record);
    for (const auto& [selector, record] : watches_) add(*record);
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.id() < b.id(); });
  return rows;
}

agent::v1::UpstreamStatus FailbackRegistry::Core::UpstreamStatus() const {
  agent::v1::UpstreamStatus status;
  UpstreamSession::State session;
  const FailbackStatistics stats = Stats(&session);
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
  if (stats.twins > 0) *status.mutable_twin_time() = ToProto(stats.twin_time);
  if (stats.lapsed_since.has_value()) {
    *status.mutable_lapsed_since() = ToProto(*stats.lapsed_since);
    *status.mutable_last_error() = StatusToProto(LapseReason(session));
  } else if (session.phase == UpstreamSession::Phase::kDown || stats.refused) {
    *status.mutable_last_error() = StatusToProto(SessionError(session));
  }
  return status;
}

int64_t FailbackRegistry::Core::local_sessions() const {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(sessions_.size());
}

bool FailbackRegistry::Core::draining() const {
  MutexLock lock(&mu_);
  return draining_;
}

absl::StatusOr<std::vector<FailbackRegistry::Core::RecordPtr>> FailbackRegistry::Core::FindPending(
    const std::vector<std::string>& ids) const {
  absl::flat_hash_set<std::string> wanted(ids.begin(), ids.end());
  std::vector<RecordPtr> found;
  const auto look = [&](const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
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

absl::StatusOr<int64_t> FailbackRegistry::Core::Retry(const std::vector<std::string>& ids) {
  int64_t retried = 0;
  {
    Entry entry(this);
    if (!entry.ok()) return absl::CancelledError("the registry client was shut down");
    MutexLock lock(&mu_);
    auto found = FindPending(ids);
    if (!found.ok()) return found.status();
    for (const RecordPtr& record : *found) {
      ++retried;
      if (record->doubt == Doubt::kOfRegistry) {
        // An intent of this agent's from now on, in the journal too.
        NewGeneration(record);
        continue;
      }
      EndDoubt(record.get());
      if (record->retry != nullptr) record->retry->RunNow();
      Enqueue(record.get());
    }
  }
  Pump();
  return retried;
}

absl::StatusOr<int64_t> FailbackRegistry::Core::Cancel(const std::vector<std::string>& ids,
                                                       int64_t* sent_count) {
  int64_t cancelled = 0;
  Entry entry(this);
  if (!entry.ok()) return absl::CancelledError("the registry client was shut down");
  Effects effects;
  {
    MutexLock lock(&mu_);
    auto found = FindPending(ids);
    if (!found.ok()) return found.status();
    const absl::Status given_up = absl::CancelledError("given up by an operator");
    const absl::Status sent_before =
        absl::CancelledError("it had been sent, and may still take effect");
    for (const RecordPtr& record : *found) {
      if (record->watch != nullptr) {
        CloseStream(record->watch, &effects);
        const auto subscribers = record->watch->subscribers;
        Emit(IntentEvent::Kind::kCancelled, *record, record->last_status, &effects);
        Erase(record, given_up, &effects);
        for (const auto& [serial, subscriber] : subscribers)
          EndSubscription(subscriber, given_up, &effects);
      } else {
        // The record stays, in the journal too, so that what the upstream holds under this key is
        // left alone, and a call in flight is still the only one.
        const bool sent = record->in_flight == record->generation;
        if (sent && sent_count != nullptr) ++*sent_count;
        Emit(IntentEvent::Kind::kCancelled, *record, sent ? sent_before : record->last_status,
             &effects);
        Resolve(record,
                sent ? absl::CancelledError(
                           absl::StrCat(given_up.message(), "; ", sent_before.message()))
                     : given_up,
                &effects);
        Move(record.get(), Stage::kGivenUp);
        EndCheck(record.get());
        record->touched = audit_serial_;
        EndDoubt(record.get());
        Persist(record);
      }
      ++cancelled;
    }
    AdvanceDrain(&effects);
  }
  CarryOut(std::move(effects));
  Pump();
  return cancelled;
}

std::string FailbackRegistry::Core::CheckInvariants() const {
  MutexLock lock(&mu_);
  std::string wrong;
  absl::flat_hash_set<const Record*> listed, queued;
  const auto list = [&](const std::vector<Record*>& records, Stage stage) {
    for (const Record* record : records) {
      listed.insert(record);
      if (record->stage == stage) continue;
      absl::StrAppend(&wrong, record->key, ": is listed as ", StageName(stage), "\n");
    }
  };
  for (const Record* record : batcher_.All()) {
    listed.insert(record);
    queued.insert(record);
    if (record->stage == Stage::kQueued || record->superseded()) continue;
    absl::StrAppend(&wrong, record->key, ": is in the queue, and ", StageName(record->stage), "\n");
  }
  list(superseded_.All(), Stage::kSuperseded);
  list(tombstones_.All(), Stage::kTombstone);
  size_t owned = 0;
  const auto check = [&](const std::string& name,
                         const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto fail = [&](const std::string& what) {
      absl::StrAppend(&wrong, name, " (", OperationName(record.kind()), " generation ",
                      record.generation, ", ", StageName(record.stage), "): ", what, "\n");
    };
    const bool to_list =
        record.stage == Stage::kTombstone ||
        (record.in_flight == 0 && (record.stage == Stage::kQueued || record.superseded()));
    if (to_list != listed.contains(&record)) fail("is not in the list of its stage, or in one");
    if (record.stage == Stage::kNone) fail("is in the table all the same");
    if (record.acknowledged > record.generation || record.in_flight > record.generation ||
        record.generation > last_generation_) {
      fail("has numbers out of order");
    }
    if (record.in_flight != 0 && record.stage != Stage::kQueued && !record.superseded() &&
        record.stage != Stage::kGivenUp) {
      fail("has a call in flight");
    }
    const bool may_be_sent = journal_gate_.MaySend(record.unwritten) &&
                             record.doubt == Doubt::kNone && !Suspended(record);
    if (record.stage == Stage::kHeldBack && may_be_sent) fail("waits for nothing");
    if (queued.contains(&record) && !may_be_sent) fail("is sent too early");
    const auto task = record.retry == nullptr ? RetryTask::State::kDue : record.retry->state();
    if ((record.stage == Stage::kWaiting) != (task == RetryTask::State::kWaiting) ||
        (record.stage == Stage::kParked) != (task == RetryTask::State::kParked)) {
      fail("has a retry task in another state");
    }
    const bool acknowledged = record.acknowledged == record.generation;
    const bool settled = record.stage == Stage::kSettled || record.stage == Stage::kTombstone;
    if (settled && (!acknowledged || record.present != (record.stage == Stage::kSettled))) {
      fail("is not acknowledged as that");
    }
    if (record.present && record.watch == nullptr && acknowledged &&
        record.stage != Stage::kGivenUp && record.held_in == Record::kNotHeld) {
      fail("is acknowledged and taken for not there");
    }
    if (!record.pending() && !record.waiters.empty() && !lapse_waiters_) {
      fail("is done, and has waiters");
    }
    if (record.stage == Stage::kParked && !record.waiters.empty()) fail("has waiters");
    if ((record.check != nullptr) != (checked_.count(record.key) > 0)) {
      fail("is a checked intent and not listed as one, or the other way round");
    }
    if (record.superseded() && (!record.present || record.watch != nullptr ||
                                record.check != nullptr || record.acknowledged != 0)) {
      fail("is superseded, and something else");
    }
    if (record.owner != nullptr) {
      ++owned;
      if (!record.owner->records.contains(&record)) fail("is not listed by its owner");
    }
  };
  for (const auto& [key, record] : records_) check(PendingId(*record), *record);
  for (const auto& [selector, record] : watches_) {
    const Watch& watch = *record->watch;
    check(watch.name, *record);
    const bool opening =
        watch.phase == Watch::Phase::kOpening || watch.phase == Watch::Phase::kQuiet;
    // An Unsubscribe may still be in flight when the selector is wanted again.
    const bool call = record->in_flight != 0 && record->in_flight == record->generation;
    if (record->present && (opening ? record->in_flight == 0 : call)) {
      absl::StrAppend(&wrong, watch.name, ": is opened without a call or the other way round\n");
    }
    if (record->present && !record->pending() && watch.phase != Watch::Phase::kStreaming) {
      absl::StrAppend(&wrong, watch.name, ": is acknowledged without a stream\n");
    }
  }
  RecordTotals totals;
  int64_t listeners = 0;
  const auto count = [&](const Record& record) {
    totals.Replace(Standing(), StandingOf(record));
    if (!(record.standing == StandingOf(record))) {
      absl::StrAppend(&wrong, record.key, ": is counted as what it was before\n");
    }
  };
  for (const auto& [key, record] : records_) count(*record);
  for (const auto& [selector, record] : watches_) {
    count(*record);
    listeners += static_cast<int64_t>(record->watch->subscribers.size());
  }
  if (!(totals == totals_)) {
    absl::StrAppend(&wrong, "the sums over the records are wrong: ", totals_.pending(),
                    " pending are counted, not ", totals.pending(), "\n");
  }
  if (listeners != listeners_)
    absl::StrAppend(&wrong, listeners_, " listeners are counted, not ", listeners, "\n");
  for (const auto& [id, session] : sessions_) owned -= session->records.size();
  if (owned != 0) absl::StrAppend(&wrong, "a session lists records that it does not own\n");
  if (totals_.superseded() > 0 && !IsArmed(superseded_timer_) && !draining_ &&
      options_.superseded_period > absl::ZeroDuration()) {
    absl::StrAppend(&wrong, totals_.superseded(), " are superseded, and not tried again\n");
  }
  int64_t ended = 0;
  for (const auto& [id, session] : sessions_) {
    ended += static_cast<int64_t>(session->unsubscribed.size());
  }
  if (ended != ended_names_) absl::StrAppend(&wrong, ended_names_, " ended names are counted\n");
  if (calls_in_flight_ < 0 || calls_in_flight_ > options_.max_calls_in_flight) {
    absl::StrAppend(&wrong, calls_in_flight_, " calls are in flight\n");
  }
  return wrong;
}

// --- Drain: a phase, not an intent.

void FailbackRegistry::Core::Drain(absl::Duration deadline,
                                   Callback<agent::v1::DrainResponse> done) {
  Entry entry(this);
  if (!entry.ok())
    return std::move(done)(absl::CancelledError("the registry client was shut down"));
  Effects effects;
  absl::StatusOr<agent::v1::DrainResponse> answer =
      Refusal(registry::v1::ERROR_REASON_DRAINING, "the agent is draining already");
  auto drain = std::make_unique<DrainState>();
  drain->done = std::move(done);
  {
    MutexLock lock(&mu_);
    if (drained_.has_value()) {
      answer = *drained_;
    } else if (drain_ == nullptr && !closed_) {
      drain_ = std::exchange(drain, nullptr);
      drain_->deadline = After(deadline, [](Core* core, Effects* effects) {
        core->mu_.AssertHeld();
        if (core->drain_ == nullptr) return;
        core->AnswerDrain(core->CountDrained(/*closed=*/false), effects);
      });
      if (!std::exchange(draining_, true)) BeginDrain(&effects);
      AdvanceDrain(&effects);
    }
  }
  CarryOut(std::move(effects));
  if (drain != nullptr) std::move(drain->done)(std::move(answer));
}

void FailbackRegistry::Core::BeginDrain(Effects* effects) {
  superseded_timer_.Cancel();
  // Subscribers receive the end now; their subscriptions go with the session.
  const auto watches = watches_;
  for (const auto& [selector, record] : watches) {
    CloseStream(record->watch, effects);
    const auto subscribers = record->watch->subscribers;
    const absl::Status end =
        Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the agent is draining");
    Erase(record, end, effects);
    for (const auto& [serial, subscriber] : subscribers) EndSubscription(subscriber, end, effects);
  }
  // Registrations that are only on their way need not arrive any more, and go back to the owner who
  // waits for them.
  for (const auto& [key, record] : records_) {
    if (!record->present) continue;
    record->retry.reset();
    Resolve(record,
            Refusal(registry::v1::ERROR_REASON_DRAINING,
                    "the agent is draining, and the intent was not acknowledged before"),
            effects);
    if (record->in_flight == 0 &&
        (record->stage == Stage::kQueued || record->stage == Stage::kWaiting ||
         record->stage == Stage::kParked)) {
      Move(record.get(), Stage::kHeldBack);
    } else if (record->in_flight == 0 && record->superseded()) {
      Move(record.get(), Stage::kSuperseded);
    }
  }
}

bool FailbackRegistry::Core::Suspended(const Record& record) const {
  return draining_ && (record.present || record.watch != nullptr);
}

void FailbackRegistry::Core::AdvanceDrain(Effects* effects) {
  if (!draining_ || drain_closing_ || calls_in_flight_ > 0) return;
  if (totals_.waiting()[static_cast<size_t>(OperationKind::kUnregister)] > 0) return;
  // What an earlier process has registered lies in the session that is yet to be opened.
  if (restored_ && seen_session_serial_ == 0) return;
  drain_closing_ = true;
  effects->CloseSession();
}

FailbackRegistry::Core::Drained FailbackRegistry::Core::DrainedAs(const Record& record,
                                                                  bool closed) {
  if (record.superseded()) return Drained::kNothing;  // nothing of ours is there
  const bool owed = !record.present && record.pending();
  const bool held = record.held_in != Record::kNotHeld;
  if (!held && record.in_flight == 0) return owed ? Drained::kRemaining : Drained::kNothing;
  const bool stays = held ? record.outlives : record.persistent;
  if (stays) return owed ? Drained::kRemaining : Drained::kPersistent;
  return closed ? Drained::kUnregistered : Drained::kRemaining;
}

agent::v1::DrainResponse FailbackRegistry::Core::CountDrained(bool closed) const {
  agent::v1::DrainResponse response;
  for (const auto& [key, record] : records_) {
    switch (DrainedAs(*record, closed)) {
      case Drained::kNothing:
        break;
      case Drained::kUnregistered:
        response.set_unregistered(response.unregistered() + 1);
        break;
      case Drained::kRemaining:
        response.set_remaining(response.remaining() + 1);
        break;
      case Drained::kPersistent:
        response.set_persistent(response.persistent() + 1);
        break;
    }
  }
  return response;
}

void FailbackRegistry::Core::AnswerDrain(const agent::v1::DrainResponse& response,
                                         Effects* effects) {
  if (drain_ == nullptr) return;
  drain_->deadline.Cancel();
  effects->Answer(std::move(drain_), response);
}

void FailbackRegistry::Core::FinishDrain(Effects* effects) {
  drained_ = CountDrained(/*closed=*/true);
  if (drain_ == nullptr) {
    effects->Log(LogLevel::kInfo, "drained after its deadline",
                 {{"upstream", options_.upstream_name},
                  {"unregistered", absl::StrCat(drained_->unregistered())},
                  {"remaining", absl::StrCat(drained_->remaining())},
                  {"persistent", absl::StrCat(drained_->persistent())}});
  }
  AnswerDrain(*drained_, effects);
  const auto records = records_;
  for (const auto& [key, record] : records) {
    // The journal keeps what is present, which the next life registers again, and the unregisters
    // that are still owed.
    const Drained as = DrainedAs(*record, /*closed=*/true);
    if (record->present || as == Drained::kRemaining || as == Drained::kPersistent) record->row = 0;
    Erase(record, absl::CancelledError("drained"), effects);
  }
}

void FailbackRegistry::Core::SetOffline(const SetOfflineRequest& request,
                                        Callback<SetOfflineResponse> done) {
  if (absl::Status status = ValidateSetOffline(request); !status.ok()) {
    return std::move(done)(status);
  }
  std::shared_ptr<Registry> upstream;
  {
    MutexLock lock(&mu_);
    upstream = upstream_;
  }
  if (upstream == nullptr) {
    return std::move(done)(absl::CancelledError("the registry client was shut down"));
  }
  upstream->SetOffline(request, std::move(done));
}

}  // namespace failback
