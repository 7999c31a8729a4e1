// The sender of FailbackRegistry: what is queued leaves in batches, and what comes of it.

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/trace_context.h"
#include "registry/failback/failback_core.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

// A batch is closed when it has grown to this, well below any server's limit.
constexpr size_t kMaxBatchBytes = 1 << 20;
// Queued intents that fail under one hold of the lock, while the upstream is unavailable.
constexpr int kMaxFailedAtOnce = 1000;

}  // namespace

void FailbackRegistry::Core::Pump() {
  Entry entry(this);
  if (!entry.ok()) return;
  if (journal_ != nullptr) journal_->Flush();
  {
    MutexLock lock(&mu_);
    if (pumping_) {
      pump_again_ = true;
      return;
    }
    pumping_ = true;
  }
  while (true) {
    Call call;
    Effects effects;
    Next next;
    {
      MutexLock lock(&mu_);
      pump_again_ = false;
      next = NextCall(&call, &effects);
      AdvanceDrain(&effects);
    }
    if (next == Next::kCall) Send(std::move(call));
    CarryOut(std::move(effects));
    if (next == Next::kIdle) {
      MutexLock lock(&mu_);
      if (pump_again_) continue;
      if (resyncing_ && batcher_.empty() && calls_in_flight_ == 0) {
        resyncing_ = false;
        AuditSoon();
      }
      pumping_ = false;
      return;
    }
  }
}

FailbackRegistry::Core::Next FailbackRegistry::Core::NextCall(Call* call, Effects* effects) {
  if (closed_ || batcher_.empty()) return Next::kIdle;
  const UpstreamSession::State session = session_->state();
  if (session.phase == UpstreamSession::Phase::kDown) {
    const absl::Status status = NoSession(session);
    for (int failed = 0; failed < kMaxFailedAtOnce; ++failed) {
      Record* const next = batcher_.Pop();
      if (next == nullptr) return Next::kIdle;
      const RecordPtr record = next->shared_from_this();
      ++counters_.unsent[static_cast<size_t>(record->kind())];
      AttemptDone(record, record->generation, status, /*sent=*/false, effects);
    }
    return Next::kAgain;
  }
  if (session.phase != UpstreamSession::Phase::kUp ||
      calls_in_flight_ >= options_.max_calls_in_flight) {
    return Next::kIdle;
  }
  Batcher<Record>::Limits limits{static_cast<size_t>(options_.max_batch), kMaxBatchBytes};
  const auto& theirs = session.info.limits();
  if (theirs.max_batch() != 0) {
    limits.max_items = std::min<size_t>(limits.max_items, theirs.max_batch());
  }
  if (theirs.max_request_bytes() != 0) {
    limits.max_bytes = std::min<size_t>(limits.max_bytes, theirs.max_request_bytes() / 2);
  }
  const std::vector<Record*> batch = batcher_.Next(limits);
  const Record& first = *batch.front();
  call->kind = first.kind();
  call->session_id = session.session_id;
  call->session_serial = session.session_serial;
  call->upstream = upstream_;
  for (Record* record : batch) AddToCall(record->shared_from_this(), call, effects);
  if (batch.size() == 1 && first.trace != nullptr) call->trace = *first.trace;
  ++calls_in_flight_;
  return Next::kCall;
}

void FailbackRegistry::Core::AddToCall(const RecordPtr& record, Call* call, Effects* effects) {
  if (record->watch != nullptr) CloseStream(record->watch, effects);
  record->in_flight = record->generation;
  call->items.emplace_back(record, record->generation);
  switch (call->kind) {
    case OperationKind::kRegister:
      if (call->items.size() == 1) call->batch = Batch(Batch::Kind::kRegister, call->session_id);
      call->batch.Put(record->key, record->instance, record->persistent, record->generation);
      record->sent_persistent = record->persistent;
      return;
    case OperationKind::kUnregister:
      if (call->items.size() == 1) call->batch = Batch(Batch::Kind::kUnregister, call->session_id);
      call->batch.Remove(record->key, record->generation);
      return;
    case OperationKind::kSubscribe: {
      Watch& watch = *record->watch;
      watch.phase = Watch::Phase::kOpening;
      watch.session_id = call->session_id;
      ArmOpening(record->watch);
      call->stream_serial = watch.stream_serial;
      *call->subscribe_request.mutable_selector() = watch.selector;
      call->subscribe_request.set_subscription_id(watch.name);
      call->subscribe_request.set_epoch(watch.set.epoch());
      call->subscribe_request.set_revision(watch.set.revision());
      call->subscribe_request.set_generation(record->generation);
      return;
    }
    case OperationKind::kUnsubscribe:
      call->unsubscribe_request.set_subscription_id(record->watch->name);
      call->unsubscribe_request.set_generation(record->generation);
      return;
  }
}

void FailbackRegistry::Core::Send(Call call) {
  const auto weak = weak_from_this();
  const std::shared_ptr<Registry> upstream = std::move(call.upstream);
  const ScopedTrace trace(std::move(call.trace));
  // Completes `call` with the call's status and, where it has them, each item's.
  const auto complete = [&weak](Call&& sent) {
    return [weak, sent = std::move(sent)](const absl::Status& status, const Results* results) {
      if (auto self = weak.lock()) self->Completed(sent, status, results);
    };
  };
  switch (call.kind) {
    case OperationKind::kRegister:
    case OperationKind::kUnregister: {
      Batch batch = std::move(call.batch);
      upstream->Write(std::move(batch), [done = complete(std::move(call))](
                                            const absl::StatusOr<BatchResult>& result) {
        // Without results all is as asked.
        if (!result.ok() || result->results.empty()) return done(result.status(), nullptr);
        done(absl::OkStatus(), &result->results);
      });
      return;
    }
    case OperationKind::kSubscribe:
      call.upstream = upstream;
      SendSubscribe(std::move(call));
      return;
    case OperationKind::kUnsubscribe: {
      UnsubscribeRequest request = std::move(call.unsubscribe_request);
      request.set_session_id(call.session_id);
      upstream->Unsubscribe(request, [done = complete(std::move(call))](
                                         const absl::StatusOr<UnsubscribeResponse>& response) {
        done(response.status(), nullptr);
      });
      return;
    }
  }
}

void FailbackRegistry::Core::Completed(const Call& call, const absl::Status& status,
                                       const Results* results) {
  Entry entry(this);
  if (!entry.ok()) return;
  Effects effects;
  bool lost = false;
  {
    MutexLock lock(&mu_);
    --calls_in_flight_;
    const bool older_session = call.session_serial != seen_session_serial_;
    // One item may have spoilt the call for all.
    const bool split = call.items.size() > 1 && IsAboutContent(status);
    for (size_t i = 0; i < call.items.size(); ++i) {
      const auto& [record, generation] = call.items[i];
      absl::Status item = status;
      if (item.ok() && results != nullptr) {
        item = i < results->size()
                   ? StatusFromProto((*results)[i].status())
                   : absl::InternalError("the registry's answer has too few results");
      }
      CountAttempt(call.kind, item);
      const NextStep step = DecideNextStep(call.kind, item);
      if (call.kind == OperationKind::kRegister &&
          (step == NextStep::kDone || MayHaveLanded(item))) {
        const bool before =
            step != NextStep::kDone && record->held_in != Record::kNotHeld && record->outlives;
        record->SetHeld(call.session_serial, record->sent_persistent || before);
      } else if (call.kind == OperationKind::kUnregister && step == NextStep::kDone) {
        record->held_in = Record::kNotHeld;
      }
      lost = lost || step == NextStep::kResync;
      const bool decided = step == NextStep::kDone || step == NextStep::kSuperseded;
      if ((older_session && decided) || split) {
        // A session that was lost after the registry answered took with it what that acknowledged,
        // and what it refused may pass in the next.
        record->in_flight = 0;
        record->alone = split;
        Enqueue(record.get());
      } else {
        AttemptDone(record, generation, item, /*sent=*/true, &effects);
      }
    }
    AdvanceDrain(&effects);
  }
  if (IsConnectionFailure(status)) session_->ReportFailure(status);
  if (lost) session_->ReportLost(call.session_id);
  CarryOut(std::move(effects));
  Pump();
}

void FailbackRegistry::Core::AttemptDone(const RecordPtr& record, uint64_t generation,
                                         const absl::Status& status, bool sent, Effects* effects) {
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
      ReasonMetadata(status, "rank").value_or("") == absl::StrCat(session_->state().info.rank())) {
    // Our own number went backwards: this incarnation used a higher one before.
    step = NextStep::kNewGeneration;
  }
  if (record->stage == Stage::kGivenUp && step != NextStep::kDone) return;
  switch (step) {
    case NextStep::kDone:
      Acknowledged(record, effects);
      return;
    case NextStep::kResync:
      // Stays queued until there is a session again.
      record->acknowledged = 0;
      Enqueue(record.get());
      return;
    case NextStep::kSuperseded:
      if (!record->present) {
        // Nothing of ours is there any more, as was wanted.
        Emit(IntentEvent::Kind::kSuperseded, *record, status, effects);
        Erase(record, status, effects);
      } else if (record->check != nullptr) {
        Revert(record, status, sent, effects);
      } else {
        Superseded(record, status, effects);
      }
      return;
    case NextStep::kNewGeneration:
      Renumber(record, status, effects);
      return;
    case NextStep::kRetry:
    case NextStep::kPark:
      if (record->check != nullptr) {
        Revert(record, sent ? status : UnsentCheck(status), sent, effects);
      } else if (record->superseded() && step == NextStep::kRetry) {
        // As it was, as far as is known; the next attempt comes with those of its kind.
        if (sent) record->last_status = status;
        Move(record.get(), Stage::kSuperseded);
      } else {
        AttemptFailed(record, status, step, sent, effects);
      }
      return;
  }
}

void FailbackRegistry::Core::Acknowledged(const RecordPtr& record, Effects* effects) {
  const bool news = record->acknowledged != record->generation;
  // Cancelled while its call was in flight: it has come through, and is an intent again.
  const bool was_given_up = record->stage == Stage::kGivenUp;
  Move(record.get(), record->present ? Stage::kSettled : Stage::kTombstone);
  if (EndCheck(record.get()) != nullptr || was_given_up) Persist(record);
  if (was_given_up) {
    effects->Log(LogLevel::kWarning, "a cancelled intent has taken effect: it had been sent before",
                 {{"id", PendingId(*record)}, {"upstream", options_.upstream_name}});
  }
  if (record->failing_since_nanos != Record::kNotFailing) {
    counters_.recovery_nanos.Observe(NowNanos() - record->failing_since_nanos);
    record->failing_since_nanos = Record::kNotFailing;
  }
  record->last_status = absl::OkStatus();
  record->renumbered = false;
  record->alone = false;
  if (news) {
    Emit(IntentEvent::Kind::kAcknowledged, *record, absl::OkStatus(), effects);
    record->trace.reset();
  }
  Resolve(record, absl::OkStatus(), effects);
  if (record->present) return;
  Forget(record.get());
  // A late call can only come from an owner that numbers its intents.
  if (record->watch != nullptr || record->owner_generation == 0) {
    Erase(record, absl::OkStatus(), effects);
  }
}

void FailbackRegistry::Core::Renumber(const RecordPtr& record, const absl::Status& status,
                                      Effects* effects) {
  uint64_t taken = 0;
  if (absl::SimpleAtoi(ReasonMetadata(status, "generation").value_or("0"), &taken) &&
      taken < kMaxGeneration) {
    last_generation_ = std::max(last_generation_, taken);
  }
  const bool again = record->renumbered;
  std::unique_ptr<RetryTask> retry = std::move(record->retry);
  TakeNumber(record);
  record->renumbered = true;
  if (!again) {
    Enqueue(record.get());
    return;
  }
  // A registry that refuses every number must not make us spin.
  record->retry = std::move(retry);
  AttemptFailed(record, status, NextStep::kRetry, /*sent=*/true, effects);
}

void FailbackRegistry::Core::AttemptFailed(const RecordPtr& record, const absl::Status& status,
                                           NextStep step, bool sent, Effects* effects) {
  record->last_status = status;
  const int64_t now = NowNanos();
  if (record->failing_since_nanos == Record::kNotFailing) record->failing_since_nanos = now;
  const bool first = record->retry == nullptr;
  if (first) {
    record->retry = std::make_unique<RetryTask>(options_.timer, &options_.retry, &options_.random);
  }
  if (step == NextStep::kPark) {
    record->retry->Park();
  } else {
    record->retry->Failed(sent ? RetryDelayOf(status) : std::nullopt,
                          [weak = weak_from_this(), record] {
                            if (auto self = weak.lock()) self->Due(record);
                          });
  }
  if (record->retry->state() == RetryTask::State::kWaiting) {
    counters_.retry_delay_nanos.Observe(record->retry->next_attempt_nanos() - now);
  }
  const bool parked = record->retry->state() == RetryTask::State::kParked;
  Move(record.get(), parked ? Stage::kParked : Stage::kWaiting);
  if (parked) {
    Emit(IntentEvent::Kind::kParked, *record, status, effects, step == NextStep::kPark && sent);
    Resolve(record, status, effects);
  } else if (first) {
    Emit(IntentEvent::Kind::kRetrying, *record, status, effects);
  }
}

void FailbackRegistry::Core::Revert(const RecordPtr& record, const absl::Status& status, bool sent,
                                    Effects* effects) {
  const std::unique_ptr<Check> before = EndCheck(record.get());
  Resolve(record, status, effects);
  const bool owed = before->landed || (sent && MayHaveLanded(status));
  if (!before->existed && !(owed && (record->present || before->landed))) {
    Erase(record, status, effects);
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

void FailbackRegistry::Core::Due(const RecordPtr& record) {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    MutexLock lock(&mu_);
    if (record->retry == nullptr || !record->retry->Begin()) return;
    if (const absl::Duration wait = retry_tokens_.Take(NowNanos()); wait > absl::ZeroDuration()) {
      const RetryTask::State state = record->retry->Wait(wait, [weak = weak_from_this(), record] {
        if (auto self = weak.lock()) self->DueWithToken(record);
      });
      Move(record.get(), state == RetryTask::State::kParked ? Stage::kParked : Stage::kWaiting);
      return;
    }
    Enqueue(record.get());
  }
  Pump();
}

void FailbackRegistry::Core::DueWithToken(const RecordPtr& record) {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    MutexLock lock(&mu_);
    if (record->retry == nullptr || !record->retry->Begin()) return;
    Enqueue(record.get());
  }
  Pump();
}

}  // namespace failback
