// The sender of the machine: what is queued leaves in batches, and what comes of it.

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

// A batch is closed when it has grown to this, well below any server's limit.
constexpr size_t kMaxBatchBytes = 1 << 20;
// Queued intents that fail under one hold of the lock, while the upstream is unavailable.
constexpr int kMaxFailedAtOnce = 1000;

}  // namespace

void Machine::Pump() {
  while (!batcher_.empty() && !closed_) {
    const UpstreamMachine::State& session = upstream_.state();
    if (session.phase == UpstreamMachine::Phase::kDown) {
      FailQueued();
      if (batcher_.empty()) break;
      out_->more = true;
      return;
    }
    if (making_ || session.phase != UpstreamMachine::Phase::kUp ||
        calls_in_flight_ >= options_.max_calls_in_flight) {
      break;
    }
    SendNext();
  }
  // What comes while the calls are made shares the next.
  making_ = making_ || !out_->calls.empty();
  if (resyncing_ && batcher_.empty() && calls_in_flight_ == 0) {
    resyncing_ = false;
    AuditSoon();
  }
}

void Machine::FailQueued() {
  if (no_session_.ok()) no_session_ = NoSession();
  const absl::Status status = no_session_;
  for (int failed = 0; failed < kMaxFailedAtOnce; ++failed) {
    Record* const next = batcher_.Pop();
    if (next == nullptr) return;
    const RecordPtr record = next->shared_from_this();
    ++counters_.unsent[static_cast<size_t>(record->kind())];
    AttemptDone(record, record->generation, status, /*sent=*/false);
  }
}

void Machine::SendNext() {
  const UpstreamMachine::State& session = upstream_.state();
  Batcher<Record>::Limits limits{static_cast<size_t>(options_.max_batch), kMaxBatchBytes};
  const auto& theirs = session.info.limits();
  if (theirs.max_batch() != 0) {
    limits.max_items = std::min<size_t>(limits.max_items, theirs.max_batch());
  }
  if (theirs.max_request_bytes() != 0) {
    limits.max_bytes = std::min<size_t>(limits.max_bytes, theirs.max_request_bytes() / 2);
  }
  const std::vector<Record*> records = batcher_.Next(limits);
  const RecordPtr first = records.front()->shared_from_this();
  ++calls_in_flight_;
  if (first->kind() == OperationKind::kSubscribe) return SendSubscribe(first);
  CallSlot slot;
  slot.kind = CallSlot::Kind::kIntents;
  slot.operation = first->kind();
  slot.session_id = session.session_id;
  slot.session_serial = session.session_serial;
  slot.items.reserve(records.size());
  Batch batch(first->present ? Batch::Kind::kRegister : Batch::Kind::kUnregister,
              session.session_id);
  for (Record* record : records) AddToCall(record->shared_from_this(), &slot, &batch);
  Effects::Call& call = out_->calls.emplace_back();
  call.id = NewCall(std::move(slot));
  if (records.size() == 1 && first->trace != nullptr) call.trace = *first->trace;
  if (first->watch == nullptr) {
    call.request = std::move(batch);
    return;
  }
  UnsubscribeRequest& request = call.request.emplace<UnsubscribeRequest>();
  request.set_session_id(session.session_id);
  request.set_subscription_id(first->watch->name);
  request.set_generation(first->generation);
}

void Machine::AddToCall(const RecordPtr& record, CallSlot* slot, Batch* batch) {
  if (record->watch != nullptr) CloseStream(record->watch.get());
  record->in_flight = record->generation;
  slot->items.emplace_back(record, record->generation);
  if (record->watch != nullptr) return;
  if (record->present) {
    batch->Put(record->key, record->instance, record->persistent, record->generation);
    record->sent_persistent = record->persistent;
  } else {
    batch->Remove(record->key, record->generation);
  }
}

void Machine::SendSubscribe(const RecordPtr& record) {
  const UpstreamMachine::State& session = upstream_.state();
  Watch* const watch = record->watch.get();
  CloseStream(watch);
  record->in_flight = record->generation;
  watch->phase = Watch::Phase::kOpening;
  watch->session_id = session.session_id;
  watch->stream = ++last_stream_;
  streams_.emplace(watch->stream, record->watch);
  ArmOpening(watch);
  Effects::Call& call = out_->calls.emplace_back();
  call.id = watch->stream;
  if (record->trace != nullptr) call.trace = *record->trace;
  SubscribeRequest& request = call.request.emplace<SubscribeRequest>();
  request.set_session_id(session.session_id);
  *request.mutable_selector() = watch->selector;
  request.set_subscription_id(watch->name);
  request.set_epoch(watch->set.epoch());
  request.set_revision(watch->set.revision());
  request.set_generation(record->generation);
}

void Machine::Completed(const CallSlot& call, const failback::Answer& answer) {
  --calls_in_flight_;
  const auto* const failed = std::get_if<absl::Status>(&answer);
  const absl::Status status = failed == nullptr ? absl::OkStatus() : *failed;
  const auto* const result = std::get_if<BatchResult>(&answer);
  // Without results all is as asked.
  const bool has_results = result != nullptr && !result->results.empty();
  const bool older_session = call.session_serial != seen_session_serial_;
  // One item may have spoilt the call for all.
  const bool split = call.items.size() > 1 && IsAboutContent(status);
  bool lost = false;
  for (size_t i = 0; i < call.items.size(); ++i) {
    const auto& [record, generation] = call.items[i];
    absl::Status item = status;
    if (item.ok() && has_results) {
      item = i < result->results.size()
                 ? StatusFromProto(result->results[i].status())
                 : absl::InternalError("the registry's answer has too few results");
    }
    CountAttempt(call.operation, item);
    const NextStep step = NoteHeld(call, record.get(), item);
    lost = lost || step == NextStep::kResync;
    const bool decided = step == NextStep::kDone || step == NextStep::kSuperseded;
    if ((older_session && decided) || split) {
      // A session that was lost after the registry answered took with it what that acknowledged,
      // and what it refused may pass in the next.
      record->in_flight = 0;
      record->alone = split;
      Enqueue(record.get());
    } else {
      AttemptDone(record, generation, item, /*sent=*/true);
    }
  }
  if (IsConnectionFailure(status)) Follow(upstream_.ReportFailure(now_, status));
  if (lost) Follow(upstream_.ReportLost(now_, call.session_id));
}

NextStep Machine::NoteHeld(const CallSlot& call, Record* record, const absl::Status& item) {
  const NextStep step = DecideNextStep(call.operation, item);
  if (call.operation == OperationKind::kRegister &&
      (step == NextStep::kDone || MayHaveLanded(item))) {
    const bool before =
        step != NextStep::kDone && record->held_in != Record::kNotHeld && record->outlives;
    record->SetHeld(call.session_serial, record->sent_persistent || before);
  } else if (call.operation == OperationKind::kUnregister && step == NextStep::kDone) {
    record->held_in = Record::kNotHeld;
  }
  return step;
}

void Machine::AttemptDone(const RecordPtr& record, uint64_t generation, const absl::Status& status,
                          bool sent) {
  record->in_flight = 0;
  record->touched = audit_serial_;
  if (record->stage == Stage::kNone) return;
  if (record->generation != generation) {
    // Of an older intent: acknowledges nothing, and the newest may go now.
    if (record->check != nullptr && sent && (status.ok() || MayHaveLanded(status))) {
      record->check->landed = true;
    }
    Enqueue(record.get());
    return;
  }
  if (record->linked()) {
    // A stream has ended that was to be opened again anyway.
    record->acknowledged = 0;
    record->last_status = status;
    Count(record.get());
    return;
  }
  NextStep step =
      sent ? DecideNextStep(record->kind(), status) : DecideUnsent(record->kind(), status);
  if (step == NextStep::kSuperseded &&
      ReasonMetadata(status, "rank").value_or("") == absl::StrCat(upstream_.state().info.rank())) {
    // Our own number went backwards: this incarnation used a higher one before.
    step = NextStep::kNewGeneration;
  }
  if (record->stage == Stage::kGivenUp && step != NextStep::kDone) return;
  TakeStep(record, step, status, sent);
}

void Machine::TakeStep(const RecordPtr& record, NextStep step, const absl::Status& status,
                       bool sent) {
  switch (step) {
    case NextStep::kDone:
      Acknowledged(record);
      return;
    case NextStep::kResync:
      // Stays queued until there is a session again.
      record->acknowledged = 0;
      Enqueue(record.get());
      return;
    case NextStep::kSuperseded:
      if (!record->present) {
        // Nothing of ours is there any more, as was wanted.
        Emit(IntentEvent::Kind::kSuperseded, *record, status);
        Erase(record, status);
      } else if (record->check != nullptr) {
        Revert(record, status, sent);
      } else {
        Superseded(record, status);
      }
      return;
    case NextStep::kNewGeneration:
      Renumber(record, status);
      return;
    case NextStep::kRetry:
    case NextStep::kPark:
      if (record->check != nullptr) {
        Revert(record, sent ? status : UnsentCheck(status), sent);
      } else if (record->superseded() && step == NextStep::kRetry) {
        // As it was, as far as is known; the next attempt comes with those of its kind.
        if (sent) record->last_status = status;
        Move(record.get(), Stage::kSuperseded);
      } else {
        AttemptFailed(record, status, step, sent);
      }
      return;
  }
}

void Machine::Acknowledged(const RecordPtr& record) {
  const bool news = record->acknowledged != record->generation;
  // Cancelled while its call was in flight: it has come through, and is an intent again.
  const bool was_given_up = record->stage == Stage::kGivenUp;
  Move(record.get(), record->present ? Stage::kSettled : Stage::kTombstone);
  if (EndCheck(record.get()) != nullptr || was_given_up) Persist(record);
  if (was_given_up) {
    Log(LogLevel::kWarning, "a cancelled intent has taken effect: it had been sent before",
        {{"id", PendingId(*record)}, {"upstream", options_.upstream_name}});
  }
  if (record->failing_since_nanos != Record::kNotFailing) {
    counters_.recovery_nanos.Observe(now_.nanos - record->failing_since_nanos);
    record->failing_since_nanos = Record::kNotFailing;
  }
  record->last_status = absl::OkStatus();
  record->renumbered = false;
  record->alone = false;
  if (news) {
    Emit(IntentEvent::Kind::kAcknowledged, *record, absl::OkStatus());
    record->trace.reset();
  }
  Resolve(record, absl::OkStatus());
  if (record->present) return;
  Forget(record.get());
  // A late call can only come from an owner that numbers its intents; and a list that was asked for
  // before may still have it.
  if (record->watch != nullptr || (record->owner_generation == 0 && !asking_)) {
    Erase(record, absl::OkStatus());
  }
}

void Machine::Renumber(const RecordPtr& record, const absl::Status& status) {
  uint64_t taken = 0;
  if (absl::SimpleAtoi(ReasonMetadata(status, "generation").value_or("0"), &taken) &&
      taken < kMaxGeneration) {
    last_generation_ = std::max(last_generation_, taken);
  }
  const bool again = record->renumbered;
  std::unique_ptr<machine::Retry> retry = std::move(record->retry);
  TakeNumber(record);
  record->renumbered = true;
  if (!again) {
    Enqueue(record.get());
    return;
  }
  // A registry that refuses every number must not make us spin.
  record->retry = std::move(retry);
  AttemptFailed(record, status, NextStep::kRetry, /*sent=*/true);
}

void Machine::AttemptFailed(const RecordPtr& record, const absl::Status& status, NextStep step,
                            bool sent) {
  record->last_status = status;
  if (record->failing_since_nanos == Record::kNotFailing) {
    record->failing_since_nanos = now_.nanos;
  }
  const bool first = record->retry == nullptr;
  if (first) record->retry = std::make_unique<machine::Retry>();
  machine::Retry& retry = *record->retry;
  std::optional<absl::Duration> wait;
  if (step == NextStep::kPark) {
    retry.rule.Refused();
  } else {
    wait = retry.rule.Failed(options_.retry, sent ? RetryDelayOf(status) : std::nullopt,
                             options_.random);
  }
  if (wait.has_value()) {
    retry.due = After(*wait, [this, record = record.get()] { Due(record); });
    counters_.retry_delay_nanos.Observe(absl::ToInt64Nanoseconds(*wait));
    Move(record.get(), Stage::kWaiting);
    if (first) Emit(IntentEvent::Kind::kRetrying, *record, status);
    return;
  }
  retry.due.Cancel();
  Move(record.get(), Stage::kParked);
  Emit(IntentEvent::Kind::kParked, *record, status, step == NextStep::kPark && sent);
  Resolve(record, status);
}

void Machine::Revert(const RecordPtr& record, const absl::Status& status, bool sent) {
  const std::unique_ptr<Check> before = EndCheck(record.get());
  Resolve(record, status);
  const bool owed = before->landed || (sent && MayHaveLanded(status));
  if (!before->existed && !(owed && (record->present || before->landed))) {
    Erase(record, status);
    return;
  }
  // What was desired before is desired again; or, if nothing was, that it be gone.
  const auto owner = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second->serial == before->owner;
  });
  record->present = before->existed && before->present;
  record->persistent = record->present && before->persistent;
  record->instance = record->present ? before->instance : Blob();
  SetOwner(record.get(), owner == sessions_.end() ? nullptr : owner->second.get(),
           before->owner_generation);
  NewGeneration(record);
}

void Machine::Due(Record* record) {
  const absl::Duration wait = retry_tokens_.Take(now_.nanos);
  if (wait <= absl::ZeroDuration()) return Enqueue(record);
  // It has its token then.
  record->retry->due = After(wait, [this, record] { Enqueue(record); });
  Move(record, Stage::kWaiting);
}

}  // namespace failback
