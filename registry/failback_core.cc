#include "registry/failback_core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "registry/canonical.h"
#include "registry/errors.h"
#include "registry/ids.h"
#include "registry/selector.h"
#include "registry/validation.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACCEPTED;
using registry::v1::INTENT_STATE_ACKNOWLEDGED;
using registry::v1::IntentState;

constexpr absl::Duration kDefaultLocalTtl = absl::Seconds(10);
constexpr absl::Duration kMinLocalTtl = absl::Seconds(1);
constexpr absl::Duration kMaxLocalTtl = absl::Hours(1);
constexpr absl::Duration kTombstoneLife = absl::Seconds(60);
// A batch is closed when it has grown to this, well below any server's limit.
constexpr size_t kMaxBatchBytes = 1 << 20;
// Queued intents that fail under one hold of the lock, while the upstream is away.
constexpr int kMaxFailedAtOnce = 1000;
// No incarnation gets here by counting; room to go on from what a registry claims to know.
constexpr uint64_t kMaxGeneration = uint64_t{1} << 62;

absl::Status Cancelled() { return absl::CancelledError("the registry client was shut down"); }

void SetDuration(absl::Duration duration, google::protobuf::Duration* proto) {
  const int64_t nanos = absl::ToInt64Nanoseconds(duration);
  proto->set_seconds(nanos / 1000000000);
  proto->set_nanos(static_cast<int32_t>(nanos % 1000000000));
}

UpstreamSession::Options SessionOptions(const FailbackRegistry::Options& options) {
  return {options.incarnation, options.client_name, options.session_ttl,
          options.reconnect,   options.timer,       options.random};
}

}  // namespace

std::shared_ptr<FailbackRegistry::Core> FailbackRegistry::Core::Create(
    std::unique_ptr<Registry> upstream, Options options, std::shared_ptr<IntentJournal> journal) {
  auto core = std::make_shared<Core>(std::move(options), std::move(journal));
  core->session_ =
      UpstreamSession::Create(std::shared_ptr<Registry>(std::move(upstream)),
                              SessionOptions(core->options_), [weak = core->weak_from_this()] {
                                if (auto self = weak.lock()) self->OnSessionChange();
                              });
  MutexLock lock(&core->mu_);
  core->upstream_ = core->session_->upstream();
  return core;
}

void FailbackRegistry::Core::Start() {
  {
    MutexLock lock(&mu_);
    Restore();
    ArmAudit();
  }
  session_->Start();
}

void FailbackRegistry::Core::Shutdown() {
  session_->Stop();
  gate_.Close();
  // What was accepted becomes durable, and is answered so.
  const absl::Status journalled = journal_ == nullptr ? absl::OkStatus() : journal_->Stop();
  std::shared_ptr<Registry> upstream;
  Records records;
  std::map<std::string, RecordPtr> watches;
  Deferred deferred;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    ReleaseReplies(last_write_, journalled, &deferred);
    unwritten_.clear();
    for (auto& [key, record] : records_) Resolve(record, Cancelled(), &deferred);
    for (auto& [selector, record] : watches_) {
      for (const auto& [serial, subscriber] : record->watch->subscribers) {
        subscriber->notifier->PostEnd(Cancelled());
        deferred.Add([notifier = subscriber->notifier] { notifier->Deliver(); });
      }
      CloseStream(record->watch, &deferred);
      record->watch->stale_timer.Cancel();
      record->watch->hold_timer.Cancel();
      record->watch->snapshot_timer.Cancel();
      record->watch->subscribers.clear();
    }
    for (auto& [id, session] : sessions_) session->lease.Cancel();
    for (auto& [key, record] : records_) record->owner = nullptr;
    sessions_.clear();
    if (drain_ != nullptr) {
      drain_->deadline.Cancel();
      deferred.Add([done = std::make_shared<Callback<agent::v1::DrainResponse>>(
                        std::move(drain_->done))] { std::move (*done)(Cancelled()); });
      drain_.reset();
    }
    records.swap(records_);
    watches.swap(watches_);
    audit_timer_.Cancel();
    for (auto& queue : ready_) queue.clear();
    tombstones_.clear();
    upstream = std::move(upstream_);
  }
  deferred.Run();
  // A task on the wheel holds its record.
  for (auto& [key, record] : records) record->retry.reset();
  for (auto& [selector, record] : watches) record->retry.reset();
  session_->ReleaseUpstream();
}

// --- Intents.

void FailbackRegistry::Core::Register(const RegisterRequest& request,
                                      Callback<RegisterResponse> done) {
  if (absl::Status status = ValidateRegister(request); !status.ok()) {
    std::move(done)(status);
    return;
  }
  std::vector<absl::Status> statuses = ValidateRegistrations(request);
  std::vector<Intent> intents(request.registrations_size());
  for (size_t i = 0; i < intents.size(); ++i) {
    const auto& registration = request.registrations(static_cast<int>(i));
    intents[i] = {std::move(statuses[i]),
                  registration.instance().key(),
                  /*present=*/true,
                  registration.instance().persistent(),
                  CanonicalInstance(registration.instance()),
                  registration.generation()};
  }
  StateIntents(request.session_id(), std::move(intents), request.wait_for(), request.check(),
               [done = std::move(done)](absl::StatusOr<Results> results) mutable {
                 if (!results.ok()) return std::move(done)(results.status());
                 RegisterResponse response;
                 for (auto& result : *results) *response.add_results() = std::move(result);
                 std::move(done)(std::move(response));
               });
}

void FailbackRegistry::Core::Unregister(const UnregisterRequest& request,
                                        Callback<UnregisterResponse> done) {
  if (absl::Status status = ValidateUnregister(request); !status.ok()) {
    std::move(done)(status);
    return;
  }
  std::vector<absl::Status> statuses = ValidateDeregistrations(request);
  std::vector<Intent> intents(request.deregistrations_size());
  for (size_t i = 0; i < intents.size(); ++i) {
    const auto& deregistration = request.deregistrations(static_cast<int>(i));
    intents[i] = {std::move(statuses[i]), deregistration.key(), /*present=*/false,
                  /*persistent=*/false,   /*payload=*/"",       deregistration.generation()};
  }
  StateIntents(request.session_id(), std::move(intents), request.wait_for(), request.check(),
               [done = std::move(done)](absl::StatusOr<Results> results) mutable {
                 if (!results.ok()) return std::move(done)(results.status());
                 UnregisterResponse response;
                 for (auto& result : *results) *response.add_results() = std::move(result);
                 std::move(done)(std::move(response));
               });
}

void FailbackRegistry::Core::StateIntents(
    const std::string& session_id, std::vector<Intent> intents, IntentState wait_for, bool check,
    absl::AnyInvocable<void(absl::StatusOr<Results>) &&> done) {
  Entry entry(this);
  if (!entry.ok()) return std::move(done)(Cancelled());
  Deferred deferred;
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    LocalSession* session = session_id.empty() ? nullptr : FindSession(session_id);
    if (closed_) {
      refused = Cancelled();
    } else if (draining_) {
      refused = Refusal(registry::v1::ERROR_REASON_DRAINING,
                        "the agent is draining and takes no new intents");
    } else if (session == nullptr && !session_id.empty()) {
      refused = Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                        absl::StrCat("session ", session_id, " is not known here"));
    }
    PurgeTombstones(&deferred);
    if (refused.ok()) {
      auto reply = std::make_shared<BatchReply>();
      reply->results.resize(intents.size());
      reply->done = std::move(done);
      const bool wait = check || wait_for == INTENT_STATE_ACKNOWLEDGED;
      // Held until all items are stated, so that none completes the batch before.
      reply->remaining = 1;
      for (size_t i = 0; i < intents.size(); ++i) {
        absl::Status status = std::move(intents[i].status);
        if (status.ok()) {
          status = StateIntent(session, std::move(intents[i]), check, wait, reply, i, &deferred);
        }
        if (!status.ok()) *reply->results[i].mutable_status() = StatusToProto(status);
      }
      AwaitJournal(reply);
      if (--reply->remaining == 0) {
        deferred.Add([reply] { std::move(reply->done)(std::move(reply->results)); });
      }
    }
  }
  if (!refused.ok()) return std::move(done)(refused);
  deferred.Run();
  Pump();
}

absl::Status FailbackRegistry::Core::StateIntent(LocalSession* session, Intent intent, bool check,
                                                 bool wait,
                                                 const std::shared_ptr<BatchReply>& reply,
                                                 size_t index, Deferred* deferred) {
  NormalizeKey(&intent.key);
  const std::string key = CanonicalKey(intent.key);
  auto it = records_.find(key);
  const bool existed = it != records_.end();
  if (existed) {
    const Record& record = *it->second;
    const bool same_content = record.present == intent.present && record.payload == intent.payload;
    if (session != nullptr && intent.owner_generation != 0 && record.owner == session) {
      if (intent.owner_generation < record.owner_generation) {
        return Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                       absl::StrCat(KeyText(intent.key), ": generation ", intent.owner_generation,
                                    " is older than ", record.owner_generation),
                       {{"generation", absl::StrCat(record.owner_generation)}});
      }
      if (intent.owner_generation == record.owner_generation && !same_content) {
        return Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED,
                       absl::StrCat(KeyText(intent.key), ": generation ", intent.owner_generation,
                                    " was used for another content"),
                       {{"generation", absl::StrCat(record.owner_generation)}});
      }
    }
  } else if (static_cast<int64_t>(records_.size()) >= options_.max_records) {
    return Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                   absl::StrCat(KeyText(intent.key), ": the agent holds ", records_.size(),
                                " intents, the most it is configured for"),
                   {{"limit", absl::StrCat(options_.max_records)}});
  }

  RecordPtr record = existed ? it->second : std::make_shared<Record>();
  const bool same = existed && record->present == intent.present &&
                    record->payload == intent.payload && !record->parked() && !record->given_up &&
                    record->check == nullptr;
  const uint64_t owner_generation = session == nullptr ? 0 : intent.owner_generation;
  if (!existed) {
    record->key = key;
    records_.emplace(record->key, record);
  }
  // The same intent again joins the one that is there.
  if (!same || (check && record->pending())) {
    Resolve(record,
            Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "a newer intent was stated meanwhile"),
            deferred);
    if (!check) {
      record->check.reset();
    } else if (record->check == nullptr) {  // else that one's way back leads further
      record->check = std::make_unique<Check>();
      record->check->existed = existed && !record->given_up;
      record->check->present = record->present;
      record->check->persistent = record->persistent;
      record->check->payload = std::move(record->payload);
      record->check->owner = record->owner == nullptr ? 0 : record->owner->serial;
      record->check->owner_generation = record->owner_generation;
    }
    record->present = intent.present;
    record->persistent = intent.persistent;
    record->payload = std::move(intent.payload);
    SetOwner(record.get(), session, owner_generation);
    NewGeneration(record);
  } else if (record->owner != session || record->owner_generation != owner_generation) {
    SetOwner(record.get(), session, owner_generation);
    Persist(record);
  }
  auto& result = reply->results[index];
  result.set_generation(record->generation);
  if (!wait) {
    result.set_state(INTENT_STATE_ACCEPTED);
  } else if (record->pending()) {
    record->waiters.push_back({reply, index});
    ++reply->remaining;
  } else {
    result.set_state(INTENT_STATE_ACKNOWLEDGED);
  }
  return absl::OkStatus();
}

void FailbackRegistry::Core::SetOwner(Record* record, LocalSession* owner,
                                      uint64_t owner_generation) {
  if (record->owner != owner) {
    if (record->owner != nullptr) record->owner->records.erase(record);
    if (owner != nullptr) owner->records.insert(record);
    record->owner = owner;
  }
  record->owner_generation = owner_generation;
}

void FailbackRegistry::Core::PurgeTombstones(Deferred* deferred) {
  while (!tombstones_.empty() && tombstones_.front().first <= NowNanos()) {
    const RecordPtr record = std::move(tombstones_.front().second);
    tombstones_.pop_front();
    if (!record->erased && !record->present && !record->pending() && !record->given_up) {
      Erase(record, absl::OkStatus(), deferred);
    }
  }
}

void FailbackRegistry::Core::NewGeneration(const RecordPtr& record) {
  TakeNumber(record);
  Enqueue(record);
}

void FailbackRegistry::Core::TakeNumber(const RecordPtr& record) {
  record->touched = audit_serial_;
  record->generation = ++last_generation_;
  record->since_nanos = NowNanos();
  record->retry.reset();
  record->last_status = absl::OkStatus();
  record->given_up = false;
  record->renumbered = false;
  record->alone = false;
  // A checked intent is not repeated by another life of the process; it is written when it has
  // passed.
  if (record->check == nullptr) Persist(record);
}

void FailbackRegistry::Core::Enqueue(const RecordPtr& record) {
  record->touched = audit_serial_;
  if (record->erased || record->queued || record->in_flight != 0 || record->given_up) return;
  if (record->unwritten > durable_) {
    record->held_back = true;
    return;
  }
  record->queued = true;
  ready_[static_cast<size_t>(record->kind())].push_back(record);
}

bool FailbackRegistry::Core::QueueEmpty() const {
  return std::all_of(ready_.begin(), ready_.end(), [](const auto& queue) { return queue.empty(); });
}

void FailbackRegistry::Core::Erase(const RecordPtr& record, const absl::Status& status,
                                   Deferred* deferred) {
  if (record->erased) return;
  Resolve(record, status, deferred);
  SetOwner(record.get(), nullptr, 0);
  Forget(record.get());
  record->erased = true;
  record->retry.reset();
  record->check.reset();
  if (record->watch != nullptr) {
    watches_.erase(CanonicalSelector(record->watch->selector));
  } else {
    records_.erase(record->key);
  }
}

void FailbackRegistry::Core::Resolve(const RecordPtr& record, const absl::Status& status,
                                     Deferred* deferred) {
  for (Waiter& waiter : record->waiters) {
    auto& result = waiter.reply->results[waiter.index];
    result.set_generation(record->generation);
    if (status.ok()) {
      result.set_state(INTENT_STATE_ACKNOWLEDGED);
    } else {
      *result.mutable_status() = StatusToProto(status);
    }
    if (--waiter.reply->remaining == 0) {
      deferred->Add([reply = waiter.reply] { std::move(reply->done)(std::move(reply->results)); });
    }
  }
  record->waiters.clear();
}

void FailbackRegistry::Core::Emit(IntentEvent::Kind kind, const Record& record,
                                  const absl::Status& status, Deferred* deferred) {
  if (options_.on_event == nullptr) return;
  IntentEvent event;
  event.kind = kind;
  event.operation = record.kind();
  event.id = PendingId(record);
  event.generation = record.generation;
  event.times = record.retry == nullptr ? 0 : record.retry->times();
  event.status = status;
  deferred->Add([this, event] {
    // After a callback of the same news has destroyed the registry nobody listens.
    if (!gate_.closed()) options_.on_event(event);
  });
}

// --- Sending.

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
    Deferred deferred;
    Next next;
    {
      MutexLock lock(&mu_);
      pump_again_ = false;
      next = NextCall(&call, &deferred);
      AdvanceDrain(&deferred);
    }
    if (next == Next::kCall) Send(std::move(call));
    deferred.Run();
    if (next == Next::kIdle) {
      MutexLock lock(&mu_);
      if (pump_again_) continue;
      if (QueueEmpty() && calls_in_flight_ == 0) resyncing_ = false;
      pumping_ = false;
      return;
    }
  }
}

FailbackRegistry::Core::Next FailbackRegistry::Core::NextCall(Call* call, Deferred* deferred) {
  if (closed_ || QueueEmpty()) return Next::kIdle;
  const UpstreamSession::State session = session_->state();
  const auto& limits = session.info.limits();
  const size_t max_batch = limits.max_batch() == 0
                               ? options_.max_batch
                               : std::min<size_t>(options_.max_batch, limits.max_batch());
  const size_t max_bytes = limits.max_request_bytes() == 0
                               ? kMaxBatchBytes
                               : std::min<size_t>(kMaxBatchBytes, limits.max_request_bytes() / 2);
  size_t bytes = 0;
  int failed = 0;
  bool moved = false;
  for (size_t turn = 0; turn < ready_.size(); ++turn) {
    auto& queue = ready_[(next_kind_ + turn) % ready_.size()];
    while (!queue.empty()) {
      const RecordPtr record = queue.front();
      const OperationKind kind = record->kind();
      if (&queue != &ready_[static_cast<size_t>(kind)]) {
        // Stated otherwise while it was queued.
        queue.pop_front();
        ready_[static_cast<size_t>(kind)].push_back(record);
        moved = true;
        continue;
      }
      const bool followed = record->watch != nullptr && record->present &&
                            record->watch->phase == Watch::Phase::kStreaming && !record->pending();
      if (record->erased || record->given_up || followed || Suspended(*record)) {
        queue.pop_front();
        record->queued = false;
        continue;
      }
      if (record->unwritten > durable_) {
        queue.pop_front();
        record->queued = false;
        record->held_back = true;
        continue;
      }
      if (session.phase == UpstreamSession::Phase::kDown) {
        queue.pop_front();
        record->queued = false;
        absl::Status status(session.last_error.code(),
                            absl::StrCat("no session at ", options_.upstream_name, ": ",
                                         std::string(session.last_error.message())));
        AttemptDone(record, record->generation, status, /*sent=*/false, deferred);
        if (++failed == kMaxFailedAtOnce) return Next::kAgain;
        continue;
      }
      if (session.phase != UpstreamSession::Phase::kUp) return Next::kIdle;
      if (call->items.empty()) {
        if (calls_in_flight_ >= options_.max_calls_in_flight) return Next::kIdle;
        call->kind = kind;
        call->session_id = session.session_id;
        call->session_serial = session.session_serial;
        call->upstream = upstream_;
      } else if (call->items.size() >= max_batch || record->alone ||
                 bytes + record->payload.size() + record->key.size() > max_bytes) {
        break;
      }
      queue.pop_front();
      record->queued = false;
      bytes += record->payload.size() + record->key.size() + 16;
      AddToCall(record, call, deferred);
      if (record->watch != nullptr || record->alone) break;
    }
    if (!call->items.empty()) {
      next_kind_ = (static_cast<size_t>(call->kind) + 1) % ready_.size();
      ++calls_in_flight_;
      return Next::kCall;
    }
  }
  return moved ? Next::kAgain : Next::kIdle;
}

void FailbackRegistry::Core::AddToCall(const RecordPtr& record, Call* call, Deferred* deferred) {
  if (record->watch != nullptr) CloseStream(record->watch, deferred);
  record->in_flight = record->generation;
  call->items.emplace_back(record, record->generation);
  switch (call->kind) {
    case OperationKind::kRegister: {
      auto* registration = call->register_request.add_registrations();
      registration->mutable_instance()->ParseFromString(record->payload);
      registration->set_generation(record->generation);
      return;
    }
    case OperationKind::kUnregister: {
      auto* deregistration = call->unregister_request.add_deregistrations();
      ParseCanonicalKey(record->key, deregistration->mutable_key());
      deregistration->set_generation(record->generation);
      return;
    }
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
  // Completes `call` with the call's status and, where it has them, each item's.
  const auto complete = [&weak](Call&& sent) {
    return [weak, sent = std::move(sent)](const absl::Status& status, const Results* results) {
      if (auto self = weak.lock()) self->Completed(sent, status, results);
    };
  };
  const auto results_of = [](const auto& response) {
    return Results(response.results().begin(), response.results().end());
  };
  switch (call.kind) {
    case OperationKind::kRegister: {
      const RegisterRequest request = [&] {
        RegisterRequest moved = std::move(call.register_request);
        moved.set_session_id(call.session_id);
        return moved;
      }();
      upstream->Register(request, [done = complete(std::move(call)),
                                   results_of](absl::StatusOr<RegisterResponse> response) {
        if (!response.ok()) return done(response.status(), nullptr);
        const Results results = results_of(*response);
        done(absl::OkStatus(), &results);
      });
      return;
    }
    case OperationKind::kUnregister: {
      const UnregisterRequest request = [&] {
        UnregisterRequest moved = std::move(call.unregister_request);
        moved.set_session_id(call.session_id);
        return moved;
      }();
      upstream->Unregister(request, [done = complete(std::move(call)),
                                     results_of](absl::StatusOr<UnregisterResponse> response) {
        if (!response.ok()) return done(response.status(), nullptr);
        const Results results = results_of(*response);
        done(absl::OkStatus(), &results);
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
                                         absl::StatusOr<UnsubscribeResponse> response) {
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
  Deferred deferred;
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
      lost = lost || DecideNextStep(call.kind, item) == NextStep::kResync;
      if ((older_session && item.ok()) || split) {
        // A session that was lost after the registry answered took with it what that acknowledged.
        record->in_flight = 0;
        record->alone = split;
        Enqueue(record);
      } else {
        AttemptDone(record, generation, item, /*sent=*/true, &deferred);
      }
    }
    AdvanceDrain(&deferred);
  }
  if (IsConnectionFailure(status)) session_->ReportFailure(status);
  if (lost) session_->ReportLost(call.session_id);
  deferred.Run();
  Pump();
}

void FailbackRegistry::Core::AttemptDone(const RecordPtr& record, uint64_t generation,
                                         const absl::Status& status, bool sent,
                                         Deferred* deferred) {
  record->in_flight = 0;
  record->touched = audit_serial_;
  if (record->erased) return;
  if (record->generation != generation) {
    // Of an older intent: acknowledges nothing, and the newest may go now.
    if (record->check != nullptr && sent && (status.ok() || MayHaveLanded(status))) {
      record->check->landed = true;
    }
    Enqueue(record);
    return;
  }
  NextStep step =
      sent ? DecideNextStep(record->kind(), status) : DecideUnsent(record->kind(), status);
  if (step == NextStep::kSuperseded &&
      ReasonMetadata(status, "rank").value_or("") == absl::StrCat(session_->state().info.rank())) {
    // Our own number went backwards: this incarnation used a higher one before.
    step = NextStep::kNewGeneration;
  }
  if (record->given_up && step != NextStep::kDone) return;
  switch (step) {
    case NextStep::kDone:
      Acknowledged(record, deferred);
      return;
    case NextStep::kResync:
      // Stays queued until there is a session again.
      record->acknowledged = 0;
      Enqueue(record);
      return;
    case NextStep::kSuperseded:
      Emit(IntentEvent::Kind::kSuperseded, *record, status, deferred);
      Erase(record, status, deferred);
      return;
    case NextStep::kNewGeneration:
      Renumber(record, status, deferred);
      return;
    case NextStep::kRetry:
    case NextStep::kPark:
      if (record->check != nullptr) {
        Revert(record, status, sent, deferred);
      } else {
        AttemptFailed(record, status, step, sent, deferred);
      }
      return;
  }
}

void FailbackRegistry::Core::Acknowledged(const RecordPtr& record, Deferred* deferred) {
  record->retry.reset();
  if (record->check != nullptr) {
    record->check.reset();
    Persist(record);
  }
  record->last_status = absl::OkStatus();
  record->given_up = false;
  record->renumbered = false;
  record->alone = false;
  if (record->acknowledged != record->generation) {
    record->acknowledged = record->generation;
    Emit(IntentEvent::Kind::kAcknowledged, *record, absl::OkStatus(), deferred);
  }
  Resolve(record, absl::OkStatus(), deferred);
  if (record->present) return;
  Forget(record.get());
  if (record->watch == nullptr && record->owner_generation != 0) {
    tombstones_.emplace_back(NowNanos() + absl::ToInt64Nanoseconds(kTombstoneLife), record);
  } else {
    Erase(record, absl::OkStatus(), deferred);
  }
}

void FailbackRegistry::Core::Renumber(const RecordPtr& record, const absl::Status& status,
                                      Deferred* deferred) {
  uint64_t taken = 0;
  if (absl::SimpleAtoi(ReasonMetadata(status, "generation").value_or("0"), &taken) &&
      taken < kMaxGeneration) {
    last_generation_ = std::max(last_generation_, taken);
  }
  const bool again = record->renumbered;
  const int64_t since = record->since_nanos;
  std::unique_ptr<RetryTask> retry = std::move(record->retry);
  TakeNumber(record);
  record->renumbered = true;
  record->since_nanos = since;
  if (!again) {
    Enqueue(record);
    return;
  }
  // A registry that refuses every number must not make us spin.
  record->retry = std::move(retry);
  AttemptFailed(record, status, NextStep::kRetry, /*sent=*/true, deferred);
}

void FailbackRegistry::Core::AttemptFailed(const RecordPtr& record, const absl::Status& status,
                                           NextStep step, bool sent, Deferred* deferred) {
  record->acknowledged = 0;
  record->last_status = status;
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
  if (record->parked()) {
    Emit(IntentEvent::Kind::kParked, *record, status, deferred);
    Resolve(record, status, deferred);
  } else if (first) {
    Emit(IntentEvent::Kind::kRetrying, *record, status, deferred);
  }
}

void FailbackRegistry::Core::Revert(const RecordPtr& record, const absl::Status& status, bool sent,
                                    Deferred* deferred) {
  const std::unique_ptr<Check> before = std::move(record->check);
  Resolve(record, status, deferred);
  const bool owed = before->landed || (sent && MayHaveLanded(status));
  if (!before->existed && !(owed && (record->present || before->landed))) {
    Erase(record, status, deferred);
    return;
  }
  // What was desired before is desired again; or, if nothing was, or its owner has gone, that
  // it be gone.
  const auto owner = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second->serial == before->owner;
  });
  const bool orphan = before->owner != 0 && owner == sessions_.end() && !before->persistent;
  record->present = before->existed && before->present && !orphan;
  record->persistent = record->present && before->persistent;
  record->payload = record->present ? before->payload : "";
  SetOwner(record.get(), owner == sessions_.end() ? nullptr : owner->second.get(),
           before->owner_generation);
  NewGeneration(record);
}

void FailbackRegistry::Core::Due(const RecordPtr& record) {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    MutexLock lock(&mu_);
    if (record->erased || record->retry == nullptr || !record->retry->Begin()) return;
    if (const absl::Duration wait = retry_tokens_.Take(NowNanos()); wait > absl::ZeroDuration()) {
      record->retry->Wait(wait, [weak = weak_from_this(), record] {
        if (auto self = weak.lock()) self->DueWithToken(record);
      });
      return;
    }
    Enqueue(record);
  }
  Pump();
}

void FailbackRegistry::Core::DueWithToken(const RecordPtr& record) {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    MutexLock lock(&mu_);
    if (record->erased || record->retry == nullptr || !record->retry->Begin()) return;
    Enqueue(record);
  }
  Pump();
}

// --- The upstream session.

Timeout FailbackRegistry::Core::After(absl::Duration delay,
                                      std::function<void(Core*, Deferred*)> work) {
  auto timer = options_.timer->NewTimeout(
      [weak = weak_from_this(), work = std::move(work)] {
        auto self = weak.lock();
        if (self == nullptr) return;
        {
          Entry entry(self.get());
          if (!entry.ok()) return;
          Deferred deferred;
          {
            MutexLock lock(&self->mu_);
            work(self.get(), &deferred);
          }
          deferred.Run();
        }
        self->Pump();
      },
      delay);
  return timer.ok() ? *std::move(timer) : Timeout();
}

void FailbackRegistry::Core::OnSessionChange() {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    Deferred deferred;
    {
      MutexLock lock(&mu_);
      const UpstreamSession::State state = session_->state();
      if (state.phase == UpstreamSession::Phase::kClosed && drain_ != nullptr) {
        FinishDrain(/*closed=*/true, &deferred);
      }
      const bool lost = state.session_serial != seen_session_serial_;
      if (lost || state.connection_serial != seen_connection_serial_) {
        seen_session_serial_ = state.session_serial;
        seen_connection_serial_ = state.connection_serial;
        Resync(lost, &deferred);
      }
    }
    deferred.Run();
  }
  Pump();
}

void FailbackRegistry::Core::Resync(bool lost, Deferred* deferred) {
  resyncing_ = resyncing_ || lost;
  std::vector<RecordPtr> forgotten;
  const auto again = [&](const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (record->given_up) return;
    if (!record->present && !record->pending()) return;  // a tombstone
    if (record->watch != nullptr && (record->watch->phase == Watch::Phase::kOpening ||
                                     record->watch->phase == Watch::Phase::kQuiet)) {
      CloseStream(record->watch, deferred);  // a stream that may never say anything
    }
    if (lost && record->watch != nullptr && !record->present) {
      forgotten.push_back(record);  // the old session's end has unsubscribed it
      return;
    }
    if (lost && !record->pending()) {
      record->acknowledged = 0;
      record->since_nanos = NowNanos();
    }
    record->retry.reset();
    Enqueue(record);
  };
  // Deregistrations first: they are few, and free what registrations may need.
  for (const bool present : {false, true}) {
    for (const auto& [key, record] : records_) {
      if (record->present == present) again(record);
    }
  }
  for (const auto& [selector, record] : watches_) again(record);
  for (const RecordPtr& record : forgotten) Erase(record, absl::OkStatus(), deferred);
}

// --- Local sessions.

FailbackRegistry::Core::LocalSession* FailbackRegistry::Core::FindSession(const std::string& id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.get();
}

void FailbackRegistry::Core::RenewSession(LocalSession* session) {
  if (session->lease.Reschedule(session->ttl)) return;
  auto lease = options_.timer->NewTimeout(
      [weak = weak_from_this(), id = session->id, serial = ++session->lease_serial] {
        if (auto self = weak.lock()) {
          self->EndSession(id, serial,
                           Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                                   "the session was not renewed within its TTL"));
        }
      },
      session->ttl);
  // The wheel refuses when it is stopped, and sessions end with the process then; or when it is
  // full, and the next renewal tries again.
  if (lease.ok()) session->lease = *std::move(lease);
}

void FailbackRegistry::Core::OpenSession(const OpenSessionRequest& request,
                                         Callback<OpenSessionResponse> done) {
  Entry entry(this);
  if (!entry.ok()) return std::move(done)(Cancelled());
  if (absl::Status status = ValidateOpenSession(request); !status.ok()) {
    return std::move(done)(status);
  }
  OpenSessionResponse response;
  {
    MutexLock lock(&mu_);
    const auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
      return entry.second->incarnation == request.incarnation();
    });
    response.set_resumed(it != sessions_.end());
    if (it == sessions_.end()) {
      auto opened = std::make_unique<LocalSession>();
      opened->id = RandomId();
      opened->serial = ++last_session_serial_;
      opened->incarnation = request.incarnation();
      response.set_session_id(opened->id);
      sessions_.emplace(opened->id, std::move(opened));
    } else {
      response.set_session_id(it->first);
    }
    LocalSession* session = FindSession(response.session_id());
    const absl::Duration asked =
        absl::Seconds(request.ttl().seconds()) + absl::Nanoseconds(request.ttl().nanos());
    session->ttl = asked == absl::ZeroDuration() ? kDefaultLocalTtl
                                                 : std::clamp(asked, kMinLocalTtl, kMaxLocalTtl);
    RenewSession(session);
    response.set_rank(session->serial);
    SetDuration(session->ttl, response.mutable_ttl());
  }
  response.set_store_id(absl::StrCat("agent-", options_.incarnation));
  response.set_epoch(Digest64(options_.incarnation) | 1);
  response.mutable_limits()->set_max_batch(kDefaultMaxBatch);
  std::move(done)(std::move(response));
}

void FailbackRegistry::Core::KeepAlive(const KeepAliveRequest& request,
                                       Callback<KeepAliveResponse> done) {
  Entry entry(this);
  if (!entry.ok()) return std::move(done)(Cancelled());
  KeepAliveResponse response;
  bool known = false;
  {
    MutexLock lock(&mu_);
    if (LocalSession* session = FindSession(request.session_id()); session != nullptr) {
      known = true;
      RenewSession(session);
      SetDuration(session->ttl, response.mutable_ttl());
    }
  }
  if (!known) {
    return std::move(done)(
        Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                absl::StrCat("session ", request.session_id(), " is not known here")));
  }
  response.set_session_id(request.session_id());
  response.set_epoch(Digest64(options_.incarnation) | 1);
  std::move(done)(std::move(response));
}

void FailbackRegistry::Core::CloseSession(const CloseSessionRequest& request,
                                          Callback<CloseSessionResponse> done) {
  EndSession(request.session_id(), /*lease_serial=*/0,
             Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN, "the session was closed"));
  std::move(done)(CloseSessionResponse());
}

void FailbackRegistry::Core::EndSession(const std::string& id, uint64_t lease_serial,
                                        const absl::Status& why) {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    Deferred deferred;
    {
      MutexLock lock(&mu_);
      const auto it = sessions_.find(id);
      if (it == sessions_.end()) return;
      // A renewal came in while the timeout was already under way.
      if (lease_serial != 0 && lease_serial != it->second->lease_serial) return;
      const std::unique_ptr<LocalSession> session = std::move(it->second);
      sessions_.erase(it);
      session->lease.Cancel();
      std::vector<Record*> owned(session->records.begin(), session->records.end());
      std::sort(owned.begin(), owned.end(),
                [](const Record* a, const Record* b) { return a->key < b->key; });
      for (Record* owned_record : owned) {
        const RecordPtr record = records_.at(owned_record->key);
        SetOwner(owned_record, nullptr, 0);
        if (!record->present || record->persistent) {
          if (record->row != 0) Persist(record);
          continue;
        }
        Resolve(record, why, &deferred);
        record->check.reset();
        record->present = false;
        record->payload.clear();
        NewGeneration(record);
      }
      for (const auto& [subscription_id, subscription] : session->subscriptions) {
        EndSubscription(subscription, why, &deferred);
      }
    }
    deferred.Run();
  }
  Pump();
}

}  // namespace failback
