#include "registry/failback/failback_core.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/trace_context.h"
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

absl::Status Cancelled() { return absl::CancelledError("the registry client was shut down"); }

UpstreamSession::Options SessionOptions(const FailbackRegistry::Options& options,
                                        std::function<registry::v1::AgentReport()> report) {
  return {options.incarnation, options.client_name, options.session_ttl, options.reconnect,
          options.timer,       options.random,      std::move(report)};
}

}  // namespace

std::shared_ptr<FailbackRegistry::Core> FailbackRegistry::Core::Create(
    std::unique_ptr<Registry> upstream, Options options, std::shared_ptr<IntentJournal> journal) {
  auto core = std::make_shared<Core>(std::move(options), std::move(journal));
  core->session_ = UpstreamSession::Create(
      std::shared_ptr<Registry>(std::move(upstream)),
      SessionOptions(core->options_,
                     [weak = core->weak_from_this()] {
                       auto self = weak.lock();
                       return self == nullptr ? registry::v1::AgentReport() : self->Report();
                     }),
      [weak = core->weak_from_this()] {
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
  {
    MutexLock lock(&mu_);
    for (const auto& [selector, record] : watches_) WriteSnapshot(record->watch.get());
  }
  // What was accepted becomes durable, and is answered so.
  const absl::Status journalled = journal_ == nullptr ? absl::OkStatus() : journal_->Stop();
  std::shared_ptr<Registry> upstream;
  Records records;
  std::map<std::string, RecordPtr> watches;
  Effects effects;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    journal_gate_.Tried(journal_gate_.last(), journalled.ok());
    ReleaseReplies(journalled, &effects);
    journal_gate_.ForgetRecords();
    for (const auto& [key, record] : records_) Resolve(record, Cancelled(), &effects);
    for (auto& [selector, record] : watches_) {
      for (const auto& [serial, subscriber] : record->watch->subscribers) {
        subscriber->notifier->PostEnd(Cancelled());
        effects.Deliver(subscriber->notifier);
      }
      CloseStream(record->watch, &effects);
      record->watch->stale_timer.Cancel();
      record->watch->hold_timer.Cancel();
      record->watch->snapshot_timer.Cancel();
      record->watch->subscribers.clear();
    }
    for (auto& [id, session] : sessions_) session->lease.Cancel();
    for (const auto& [key, record] : records_) record->owner = nullptr;
    sessions_.clear();
    heartbeat_.Cancel();
    if (drain_ != nullptr) {
      drain_->deadline.Cancel();
      effects.Answer(std::move(drain_), Cancelled());
    }
    std::swap(records, records_);
    watches.swap(watches_);
    checked_.clear();
    superseded_.Clear();
    superseded_timer_.Cancel();
    audit_timer_.Cancel();
    ask_timer_.Cancel();
    batcher_.Clear();
    tombstones_.Clear();
    totals_ = RecordTotals();
    listeners_ = 0;
    ended_names_ = 0;
    upstream = std::move(upstream_);
  }
  CarryOut(std::move(effects));
  // A task on the wheel holds its record.
  for (const auto& [key, record] : records) record->retry.reset();
  for (auto& [selector, record] : watches) record->retry.reset();
  session_->ReleaseUpstream();
}

// --- Intents.

void FailbackRegistry::Core::Write(Batch batch, Callback<BatchResult> done) {
  if (absl::Status status = batch.Check(kDefaultMaxBatch); !status.ok()) {
    return std::move(done)(status);
  }
  StateIntents(std::move(batch), [done = std::move(done)](absl::StatusOr<Results> results) mutable {
    if (!results.ok()) return std::move(done)(results.status());
    std::move(done)(BatchResult{*std::move(results)});
  });
}

void FailbackRegistry::Core::StateIntents(
    Batch batch, absl::AnyInvocable<void(absl::StatusOr<Results>) &&> done) {
  Entry entry(this);
  if (!entry.ok()) return std::move(done)(Cancelled());
  Effects effects;
  auto reply = std::make_shared<BatchReply>();
  reply->results.resize(batch.size());
  reply->done = std::move(done);
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    LocalSession* session = batch.session_id().empty() ? nullptr : FindSession(batch.session_id());
    if (closed_) {
      refused = Cancelled();
    } else if (draining_) {
      refused = Refusal(registry::v1::ERROR_REASON_DRAINING,
                        "the agent is draining and takes no new intents");
    } else if (session == nullptr && !batch.session_id().empty()) {
      refused = Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                        absl::StrCat("session ", batch.session_id(), " is not known here"));
    }
    PurgeTombstones(&effects);
    if (refused.ok()) {
      const bool check = batch.check();
      const bool wait = check || batch.wait_for() == INTENT_STATE_ACKNOWLEDGED;
      std::vector<Intent> intents = std::move(batch).TakeIntents();
      // Held until all items are stated, so that none completes the batch before.
      reply->remaining = 1;
      for (size_t i = 0; i < intents.size(); ++i) {
        absl::Status status = std::move(intents[i].status);
        if (status.ok()) {
          status = StateIntent(session, std::move(intents[i]), check, wait, reply, i, &effects);
        }
        if (!status.ok()) *reply->results[i].mutable_status() = StatusToProto(status);
      }
      AwaitJournal(reply);
      if (--reply->remaining == 0) {
        effects.Answer(reply);
      }
    }
  }
  CarryOut(std::move(effects));
  if (!refused.ok()) return std::move(reply->done)(refused);
  Pump();
}

absl::Status FailbackRegistry::Core::StateIntent(LocalSession* session, Intent intent, bool check,
                                                 bool wait,
                                                 const std::shared_ptr<BatchReply>& reply,
                                                 size_t index, Effects* effects) {
  const RecordPtr* const found = records_.Find(intent.key);
  const bool existed = found != nullptr;
  if (existed) {
    const Record& record = **found;
    const bool same_content =
        record.present == intent.registers && record.instance == intent.instance;
    if (session != nullptr && intent.generation != 0 && record.owner == session) {
      if (intent.generation < record.owner_generation) {
        return Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                       absl::StrCat(CanonicalKeyText(intent.key), ": generation ",
                                    intent.generation, " is older than ", record.owner_generation),
                       {{"rank", absl::StrCat(session->serial)},
                        {"generation", absl::StrCat(record.owner_generation)}});
      }
      if (intent.generation == record.owner_generation && !same_content) {
        return Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED,
                       absl::StrCat(CanonicalKeyText(intent.key), ": generation ",
                                    intent.generation, " was used for another content"),
                       {{"generation", absl::StrCat(record.owner_generation)}});
      }
    }
  } else if (absl::Status room = CheckRoom(records_.size(), options_.max_records, "instances");
             !room.ok()) {
    return room;
  }
  const auto owner_of = [](const LocalSession* of) { return of == nullptr ? "" : of->owner; };
  if (!existed || (intent.registers && owner_of((*found)->owner) != owner_of(session))) {
    if (absl::Status share = CheckShare(session); !share.ok()) return share;
  }

  const RecordPtr record = existed ? *found : std::make_shared<Record>();
  const bool same = existed && record->present == intent.registers &&
                    record->instance == intent.instance && record->stage != Stage::kParked &&
                    record->stage != Stage::kGivenUp && !record->superseded() &&
                    record->doubt == Doubt::kNone && record->check == nullptr;
  const uint64_t owner_generation = session == nullptr ? 0 : intent.generation;
  // What was acknowledged in a session that has lapsed is not any more, for those who ask.
  bool lapsed = false;
  if (same && wait && record->present && !record->pending()) {
    const UpstreamSession::State upstream = session_->state();
    lapsed = LapsedSince(upstream).has_value();
    if (lapsed && check && upstream.phase == UpstreamSession::Phase::kDown) {
      return UnsentCheck(NoSession(upstream));
    }
  }
  if (!same && !record->pending() && (intent.registers || !existed)) {
    absl::Status room = CheckRoom(totals_.pending(), options_.max_pending, "pending operations");
    if (!room.ok()) return room;
  }
  if (!existed) {
    record->key = std::move(intent.key);
    records_.Add(record->key, record);
  }
  // The same intent again joins the one that is there.
  if (!same || (check && record->pending())) {
    if (!record->waiters.empty()) {
      Resolve(record,
              Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "a newer intent was stated meanwhile"),
              effects);
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
    SetOwner(record.get(), session, owner_generation);
    record->trace =
        CurrentTrace().empty() ? nullptr : std::make_unique<const std::string>(CurrentTrace());
    NewGeneration(record);
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

void FailbackRegistry::Core::SetOwner(Record* record, LocalSession* owner,
                                      uint64_t owner_generation) {
  if (record->owner != owner) {
    const auto count = [&](const LocalSession* session, int change)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                             if (session == nullptr || session->owner.empty()) return;
                             records_of_.Add(session->owner, change);
                             named_records_ += change;
                           };
    count(record->owner, -1);
    count(owner, +1);
    if (record->owner != nullptr) record->owner->records.erase(record);
    if (owner != nullptr) owner->records.insert(record);
    record->owner = owner;
  }
  record->owner_generation = owner_generation;
}

std::unique_ptr<FailbackRegistry::Core::Check> FailbackRegistry::Core::EndCheck(Record* record) {
  if (record->check != nullptr) checked_.erase(record->key);
  return std::move(record->check);
}

void FailbackRegistry::Core::PurgeTombstones(Effects* effects) {
  const int64_t begun = NowNanos() - absl::ToInt64Nanoseconds(kTombstoneLife);
  while (!tombstones_.empty() && tombstones_.front()->since_nanos <= begun) {
    Erase(tombstones_.front()->shared_from_this(), absl::OkStatus(), effects);
  }
}

void FailbackRegistry::Core::NewGeneration(const RecordPtr& record) {
  record->failing_since_nanos = Record::kNotFailing;
  record->since_nanos = NowNanos();
  TakeNumber(record);
  Enqueue(record.get());
}

void FailbackRegistry::Core::TakeNumber(const RecordPtr& record) {
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

void FailbackRegistry::Core::Count(Record* record) {
  Standing standing = StandingOf(*record);
  if (standing.pending && !record->standing.pending) {
    standing.since_nanos = record->since_nanos = NowNanos();
  }
  if (standing == record->standing) return;
  totals_.Replace(record->standing, standing);
  record->standing = standing;
}

Standing FailbackRegistry::Core::StandingOf(const Record& record) {
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

IntentState FailbackRegistry::Core::StateOf(const Record& record, bool lapsed) {
  if (record.superseded()) return INTENT_STATE_SUPERSEDED;
  if (record.stage == Stage::kParked) return INTENT_STATE_PARKED;
  if (record.pending()) return INTENT_STATE_ACCEPTED;
  return lapsed ? INTENT_STATE_LAPSED : INTENT_STATE_ACKNOWLEDGED;
}

absl::Status FailbackRegistry::Core::CheckRoom(int64_t count, int64_t limit,
                                               const char* what) const {
  if (count < limit) return absl::OkStatus();
  return Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                 absl::StrCat("the agent has ", count, " ", what, " for ", options_.upstream_name,
                              ", the most that it is configured for"),
                 {{"limit", absl::StrCat(limit)}});
}

absl::Status FailbackRegistry::Core::CheckShare(const LocalSession* session) const {
  const SharedLimit limit = {"instances", "limits.instances", options_.max_records};
  if (session != nullptr) return limit.Check(0, records_of_.Of(session->owner));
  if (!options_.callers_have_names) return absl::OkStatus();
  return limit.Check(0, static_cast<int64_t>(records_.size()) - named_records_);
}

void FailbackRegistry::Core::Move(Record* record, Stage to) {
  assert(MayFollow(record->stage, to));
  const bool queued = to == Stage::kQueued && record->in_flight == 0;
  // What is in the queue keeps its place there.
  if (!queued || record->stage != Stage::kQueued) record->Unlink();
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
        record->since_nanos = NowNanos();
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

void FailbackRegistry::Core::Enqueue(Record* record) {
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

void FailbackRegistry::Core::Erase(const RecordPtr& record, const absl::Status& status,
                                   Effects* effects) {
  if (record->stage == Stage::kNone) return;
  Resolve(record, status, effects);
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

void FailbackRegistry::Core::Resolve(const RecordPtr& record, const absl::Status& status,
                                     Effects* effects) {
  for (Waiter& waiter : record->waiters) {
    auto& result = waiter.reply->results[waiter.index];
    result.set_generation(record->generation);
    if (status.ok()) {
      result.set_state(INTENT_STATE_ACKNOWLEDGED);
    } else {
      if (record->superseded()) result.set_state(INTENT_STATE_SUPERSEDED);
      *result.mutable_status() = StatusToProto(status);
    }
    if (--waiter.reply->remaining == 0) {
      effects->Answer(waiter.reply);
    }
  }
  record->waiters.clear();
}

void FailbackRegistry::Core::Emit(IntentEvent::Kind kind, const Record& record,
                                  const absl::Status& status, Effects* effects, bool refused) {
  if (options_.on_event == nullptr) return;
  IntentEvent event;
  event.kind = kind;
  event.operation = record.kind();
  event.id = PendingId(record);
  if (record.watch == nullptr) ParseCanonicalKey(record.key, &event.key);
  event.upstream = options_.upstream_name;
  event.generation = record.generation;
  // As pending operations count.
  event.times = record.retry == nullptr ? record.superseded_times : record.retry->times();
  // An unregistration that is superseded is done with this attempt.
  if (kind == IntentEvent::Kind::kSuperseded && !record.superseded()) ++event.times;
  event.status = status;
  event.refused = refused;
  if (record.trace != nullptr) event.traceparent = *record.trace;
  effects->Emit(std::move(event));
}

// --- Time.

Timeout FailbackRegistry::Core::After(absl::Duration delay,
                                      std::function<void(Core*, Effects*)> work) {
  auto timer = options_.timer->ScheduleUnbounded(
      [weak = weak_from_this(), work = std::move(work)] {
        auto self = weak.lock();
        if (self == nullptr) return;
        {
          Entry entry(self.get());
          if (!entry.ok()) return;
          Effects effects;
          {
            MutexLock lock(&self->mu_);
            work(self.get(), &effects);
          }
          self->CarryOut(std::move(effects));
        }
        self->Pump();
      },
      delay);
  return timer.ok() ? *std::move(timer) : Timeout();
}

}  // namespace failback
