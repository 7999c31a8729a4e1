#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACCEPTED;
using registry::v1::INTENT_STATE_ACKNOWLEDGED;
using registry::v1::INTENT_STATE_LAPSED;
using registry::v1::INTENT_STATE_PARKED;
using registry::v1::INTENT_STATE_SUPERSEDED;
using registry::v1::IntentState;

constexpr absl::Duration kTombstoneLife = absl::Seconds(60);

}  // namespace

void Machine::On(input::Write&& in) {
  Batch& batch = in.batch;
  PurgeTombstones();
  LocalSession* const session =
      batch.session_id().empty() ? nullptr : FindSession(batch.session_id());
  if (draining_) {
    return Answer(in.ticket, Refusal(registry::v1::ERROR_REASON_DRAINING,
                                     "the agent is draining and takes no new intents"));
  }
  if (session == nullptr && !batch.session_id().empty()) {
    return Answer(in.ticket, SessionUnknown(batch.session_id()));
  }
  const auto reply = std::make_shared<BatchReply>();
  reply->ticket = in.ticket;
  reply->results.resize(batch.size());
  // Held until all items are stated, so that none completes the batch before.
  reply->remaining = 1;
  const bool check = batch.check();
  const bool wait = check || batch.wait_for() == INTENT_STATE_ACKNOWLEDGED;
  trace_ = std::move(in.trace);
  std::vector<Intent> intents = std::move(batch).TakeIntents();
  for (size_t i = 0; i < intents.size(); ++i) {
    absl::Status status = std::move(intents[i].status);
    if (status.ok()) status = StateIntent(session, std::move(intents[i]), check, wait, reply, i);
    if (!status.ok()) *reply->results[i].mutable_status() = StatusToProto(status);
  }
  trace_.clear();
  AwaitJournal(reply);
  Release(reply);
}

absl::Status Machine::CheckNumber(const LocalSession& session, const Record& record,
                                  const Intent& intent) {
  if (intent.generation == 0 || record.owner != &session) return absl::OkStatus();
  if (intent.generation < record.owner_generation) {
    return Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                   absl::StrCat(CanonicalKeyText(intent.key), ": generation ", intent.generation,
                                " is older than ", record.owner_generation),
                   {{"rank", absl::StrCat(session.serial)},
                    {"generation", absl::StrCat(record.owner_generation)}});
  }
  const bool same = record.present == intent.registers && record.instance == intent.instance;
  if (intent.generation == record.owner_generation && !same) {
    return Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED,
                   absl::StrCat(CanonicalKeyText(intent.key), ": generation ", intent.generation,
                                " was used for another content"),
                   {{"generation", absl::StrCat(record.owner_generation)}});
  }
  return absl::OkStatus();
}

absl::Status Machine::CheckBounds(const LocalSession* session, const Record* record,
                                  bool registers) const {
  const auto owner_of = [](const LocalSession* of) { return of == nullptr ? "" : of->owner; };
  if (record == nullptr) {
    absl::Status room =
        CheckRoom(static_cast<int64_t>(records_.size()), options_.max_records, "instances");
    if (!room.ok()) return room;
  }
  if (record == nullptr || (registers && owner_of(record->owner) != owner_of(session))) {
    return CheckShare(session);
  }
  return absl::OkStatus();
}

absl::Status Machine::StateIntent(LocalSession* session, Intent intent, bool check, bool wait,
                                  const ReplyPtr& reply, size_t index) {
  const RecordPtr* const found = records_.Find(intent.key);
  const bool existed = found != nullptr;
  absl::Status refused =
      existed && session != nullptr ? CheckNumber(*session, **found, intent) : absl::OkStatus();
  if (refused.ok()) {
    refused = CheckBounds(session, existed ? found->get() : nullptr, intent.registers);
  }
  if (!refused.ok()) return refused;

  const RecordPtr record = existed ? *found : std::make_shared<Record>();
  const bool same = existed && record->present == intent.registers &&
                    record->instance == intent.instance && record->stage != Stage::kParked &&
                    record->stage != Stage::kGivenUp && !record->superseded() &&
                    record->doubt == Doubt::kNone && record->check == nullptr;
  const uint64_t owner_generation = session == nullptr ? 0 : intent.generation;
  // What was acknowledged in a session that has lapsed is not any more, for those who ask.
  bool lapsed = false;
  if (same && wait && record->present && !record->pending()) {
    lapsed = LapsedSince(now_).has_value();
    if (lapsed && check && upstream_.state().phase == UpstreamMachine::Phase::kDown) {
      return UnsentCheck(NoSession());
    }
  }
  // The same intent again joins the one that is there. A checked one that has to be sent does not:
  // it has a way back.
  const bool joins = same && !(check && (record->pending() || lapsed));
  if (!joins && !record->pending() && (intent.registers || !existed)) {
    absl::Status room = CheckRoom(totals_.pending(), options_.max_pending, "pending operations");
    if (!room.ok()) return room;
  }
  if (!existed) {
    record->key = std::move(intent.key);
    records_.Add(record->key, record);
  }
  if (!joins) {
    TakeIntent(record, std::move(intent), session, check, existed);
  } else if (record->owner != session || record->owner_generation != owner_generation) {
    SetOwner(record.get(), session, owner_generation);
    Persist(record);
  }
  auto& result = reply->results[index];
  result.set_generation(record->generation);
  if (!wait) {
    result.set_state(INTENT_STATE_ACCEPTED);
  } else if (record->pending() || lapsed) {
    record->waiters.push_back({reply, index});
    ++reply->remaining;
    lapse_waiters_ = lapse_waiters_ || !record->pending();
  } else {
    result.set_state(INTENT_STATE_ACKNOWLEDGED);
  }
  return absl::OkStatus();
}

void Machine::TakeIntent(const RecordPtr& record, Intent intent, LocalSession* session, bool check,
                         bool existed) {
  if (!record->waiters.empty()) {
    Resolve(record,
            Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "a newer intent was stated meanwhile"));
  }
  if (!check) {
    EndCheck(record.get());
  } else if (record->check == nullptr) {  // else that one's way back leads further
    checked_.emplace(record->key, record);
    record->check = std::make_unique<Check>();
    record->check->existed = existed && record->stage != Stage::kGivenUp;
    record->check->present = record->present;
    record->check->persistent = record->persistent;
    record->check->instance = std::move(record->instance);
    record->check->owner = record->owner == nullptr ? 0 : record->owner->serial;
    record->check->owner_generation = record->owner_generation;
  }
  record->present = intent.registers;
  record->persistent = intent.persistent;
  record->instance = std::move(intent.instance);
  SetOwner(record.get(), session, session == nullptr ? 0 : intent.generation);
  record->trace = trace_.empty() ? nullptr : std::make_unique<const std::string>(trace_);
  NewGeneration(record);
}

void Machine::CountOwned(const LocalSession* session, int change) {
  if (session == nullptr || session->owner.empty()) return;
  records_of_.Add(session->owner, change);
  named_records_ += change;
}

void Machine::SetOwner(Record* record, LocalSession* owner, uint64_t owner_generation) {
  if (record->owner != owner) {
    CountOwned(record->owner, -1);
    CountOwned(owner, +1);
    if (record->owner != nullptr) record->owner->records.erase(record);
    if (owner != nullptr) owner->records.insert(record);
    record->owner = owner;
  }
  record->owner_generation = owner_generation;
}

std::unique_ptr<Machine::Check> Machine::EndCheck(Record* record) {
  if (record->check != nullptr) checked_.erase(record->key);
  return std::move(record->check);
}

void Machine::PurgeTombstones() {
  const int64_t begun = now_.nanos - absl::ToInt64Nanoseconds(kTombstoneLife);
  while (!tombstones_.empty() && tombstones_.front()->since_nanos <= begun) {
    Erase(tombstones_.front()->shared_from_this(), absl::OkStatus());
  }
}

void Machine::NewGeneration(const RecordPtr& record) {
  record->failing_since_nanos = Record::kNotFailing;
  record->since_nanos = now_.nanos;
  TakeNumber(record);
  Enqueue(record.get());
}

void Machine::TakeNumber(const RecordPtr& record) {
  EndDoubt(record.get());
  record->touched = audit_serial_;
  record->generation = ++last_generation_;
  record->retry.reset();
  record->last_status = absl::OkStatus();
  record->renumbered = false;
  record->alone = false;
  // What is queued keeps its place, or stays with the call of its key.
  Move(record.get(), record->stage == Stage::kQueued ? Stage::kQueued : Stage::kHeldBack);
  // A checked intent is not repeated by another life of the process; it is written when it has
  // passed.
  if (record->check == nullptr) Persist(record);
}

void Machine::Count(Record* record) {
  Standing standing = StandingOf(*record);
  if (standing.pending && !record->standing.pending) {
    standing.since_nanos = record->since_nanos = now_.nanos;
  }
  if (standing == record->standing) return;
  totals_.Replace(record->standing, standing);
  record->standing = standing;
}

Standing Machine::StandingOf(const Record& record) {
  Standing standing;
  if (record.stage == Stage::kNone) return standing;
  standing.kind = record.kind();
  standing.pending = record.pending();
  standing.parked = record.stage == Stage::kParked;
  standing.superseded = record.superseded();
  standing.desired = record.watch == nullptr && record.present && record.stage != Stage::kGivenUp;
  standing.followed = record.watch != nullptr && record.present;
  standing.stale = standing.followed && record.watch->set.stale();
  if (standing.pending) standing.since_nanos = record.since_nanos;
  return standing;
}

IntentState Machine::StateOf(const Record& record, bool lapsed) {
  if (record.superseded()) return INTENT_STATE_SUPERSEDED;
  if (record.stage == Stage::kParked) return INTENT_STATE_PARKED;
  if (record.pending()) return INTENT_STATE_ACCEPTED;
  return lapsed ? INTENT_STATE_LAPSED : INTENT_STATE_ACKNOWLEDGED;
}

absl::Status Machine::CheckRoom(int64_t count, int64_t limit, const char* what) const {
  if (count < limit) return absl::OkStatus();
  return Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                 absl::StrCat("the agent has ", count, " ", what, " for ", options_.upstream_name,
                              ", the most that it is configured for"),
                 {{"limit", absl::StrCat(limit)}});
}

absl::Status Machine::CheckShare(const LocalSession* session) const {
  const SharedLimit limit = {"instances", "limits.instances", options_.max_records};
  if (session != nullptr) return limit.Check(0, records_of_.Of(session->owner));
  if (!options_.callers_have_names) return absl::OkStatus();
  return limit.Check(0, static_cast<int64_t>(records_.size()) - named_records_);
}

void Machine::Move(Record* record, Stage to) {
  assert(MayFollow(record->stage, to));
  const bool queued = to == Stage::kQueued && record->in_flight == 0;
  // What is in the queue keeps its place there.
  if (!queued || record->stage != Stage::kQueued) record->Unlink();
  if (record->stage == Stage::kWaiting && to != Stage::kWaiting && record->retry != nullptr) {
    record->retry->due.Cancel();
  }
  record->stage = to;
  switch (to) {
    case Stage::kHeldBack:
      break;
    case Stage::kQueued:
      if (queued && !record->linked()) batcher_.Push(record);
      break;
    case Stage::kWaiting:
    case Stage::kParked:
      record->acknowledged = 0;
      break;
    case Stage::kSuperseded:
      record->acknowledged = 0;
      record->retry.reset();
      superseded_.PushBack(record);
      break;
    case Stage::kSettled:
    case Stage::kTombstone:
      record->acknowledged = record->generation;
      record->retry.reset();
      if (to == Stage::kTombstone) {
        record->since_nanos = now_.nanos;
        tombstones_.PushBack(record);
      }
      break;
    case Stage::kNone:
    case Stage::kGivenUp:
      record->retry.reset();
      break;
  }
  if (to != Stage::kSuperseded) record->superseded_times = 0;
  Count(record);
}

void Machine::Enqueue(Record* record) {
  record->touched = audit_serial_;
  if (record->stage == Stage::kNone || record->stage == Stage::kGivenUp ||
      record->doubt != Doubt::kNone) {
    return;
  }
  const bool held =
      record->in_flight == 0 && (Suspended(*record) || !journal_gate_.MaySend(record->unwritten));
  if (!record->superseded()) return Move(record, held ? Stage::kHeldBack : Stage::kQueued);
  // It is superseded until there is another answer.
  if (held) return Move(record, Stage::kSuperseded);
  if (record->in_flight != 0) return;
  record->Unlink();
  batcher_.Push(record);
}

void Machine::Erase(const RecordPtr& record, const absl::Status& status) {
  if (record->stage == Stage::kNone) return;
  Resolve(record, status);
  EndDoubt(record.get());
  SetOwner(record.get(), nullptr, 0);
  Forget(record.get());
  Move(record.get(), Stage::kNone);
  EndCheck(record.get());
  if (record->watch != nullptr) {
    watches_.erase(CanonicalSelector(record->watch->selector));
  } else {
    records_.Remove(record->key);
  }
}

void Machine::Resolve(const RecordPtr& record, const absl::Status& status) {
  for (Waiter& waiter : record->waiters) {
    auto& result = waiter.reply->results[waiter.index];
    result.set_generation(record->generation);
    if (status.ok()) {
      result.set_state(INTENT_STATE_ACKNOWLEDGED);
    } else {
      if (record->superseded()) result.set_state(INTENT_STATE_SUPERSEDED);
      *result.mutable_status() = StatusToProto(status);
    }
    Release(waiter.reply);
  }
  record->waiters.clear();
}

void Machine::Emit(IntentEvent::Kind kind, const Record& record, const absl::Status& status,
                   bool refused) {
  if (!setup_.events) return;
  IntentEvent& event = out_->events.emplace_back();
  event.kind = kind;
  event.operation = record.kind();
  event.id = PendingId(record);
  if (record.watch == nullptr) ParseCanonicalKey(record.key, &event.key);
  event.upstream = options_.upstream_name;
  event.generation = record.generation;
  // As pending operations count.
  event.times = record.retry == nullptr ? record.superseded_times : record.retry->rule.times();
  // An unregistration that is superseded is done with this attempt.
  if (kind == IntentEvent::Kind::kSuperseded && !record.superseded()) ++event.times;
  event.status = status;
  event.refused = refused;
  if (record.trace != nullptr) event.traceparent = *record.trace;
}

}  // namespace failback
