#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_core.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"

namespace failback {
namespace {

// What is refused is reported to the registry all the same (OnJournal), so that it goes on.
constexpr char kNotDurable[] =
    "; it is in force and sent to the registry all the same, but is lost if the agent ends before "
    "the journal is written: state it again until it is accepted";

// A set that changes often is written this often.
constexpr absl::Duration kSnapshotPeriod = absl::Seconds(1);

// The owner of an intent as it is journalled: the incarnation of the local session and, where
// callers are distinguished, who opened it. No incarnation has a control character.
constexpr char kOpenedBy = '\x1f';

std::string JournalledOwner(const std::string& incarnation, const std::string& opened_by) {
  return opened_by.empty() ? incarnation
                           : absl::StrCat(incarnation, std::string(1, kOpenedBy), opened_by);
}

// As a row of the journal has it: empty for what is to be gone.
Blob InstanceOf(const std::string& payload) { return payload.empty() ? Blob() : Blob(payload); }

OpenSessionRequest OpenerOf(const std::string& owner) {
  OpenSessionRequest request;
  const size_t mark = owner.find(kOpenedBy);
  request.set_incarnation(owner.substr(0, mark));
  if (mark != std::string::npos) request.set_owner(owner.substr(mark + 1));
  return request;
}

}  // namespace

void FailbackRegistry::Core::Restore() {
  if (journal_ != nullptr) {
    last_generation_ = journal_->last_generation();
    for (IntentJournal::Intent& intent : journal_->TakeIntents()) {
      auto record = std::make_shared<Record>();
      record->key = std::move(intent.key);
      record->present = intent.present;
      record->persistent = intent.persistent;
      record->instance = InstanceOf(intent.payload);
      record->generation = intent.generation;
      record->row = intent.row;
      // The journal does not keep whether what is to go is persistent.
      record->SetHeld(0, record->persistent || !record->present);
      restored_ = true;
      if (!records_.Add(record->key, record)) continue;
      if (!intent.owner.empty()) {
        SetOwner(record.get(), FormerSession(intent.owner, intent.owner_ttl),
                 intent.owner_generation);
      }
      if (journal_->was_put_back()) {
        record->doubt = Doubt::kOfJournal;
        ++doubted_;
      }
      Move(record.get(), Stage::kHeldBack);
      if (intent.given_up) Move(record.get(), Stage::kGivenUp);
      Enqueue(record.get());
    }
    ask_ = journal_->was_put_back();
    for (IntentJournal::Snapshot& snapshot : journal_->TakeSnapshots()) {
      DropFromJournal(last_known_.Put(snapshot.selector, std::move(snapshot.event)));
    }
    journal_->Start([weak = weak_from_this()](uint64_t sequence, const absl::Status& status) {
      if (auto self = weak.lock()) self->OnJournal(sequence, status);
    });
  }
  if (options_.adopt.has_value()) Adopt(*options_.adopt);
}

FailbackRegistry::Core::LocalSession* FailbackRegistry::Core::FormerSession(
    const std::string& owner, absl::Duration ttl) {
  const OpenSessionRequest request = OpenerOf(owner);
  for (const auto& [id, session] : sessions_) {
    if (session->incarnation == request.incarnation()) return session.get();
  }
  // The client has a full TTL to come back, with the same incarnation, to what is its own. No other
  // client has a claim to it, in another life of the process either.
  LocalSession* const session = NewSession(request);
  session->ttl = ttl;
  RenewSession(session);
  return session;
}

void FailbackRegistry::Core::Adopt(const std::vector<IntentJournal::Intent>& intents) {
  std::unordered_map<std::string_view, const IntentJournal::Intent*> adopted;
  for (const IntentJournal::Intent& intent : intents) adopted[intent.key] = &intent;
  const auto state = [&](const RecordPtr& record,
                         const IntentJournal::Intent* intent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool present = intent != nullptr && intent->present;
    record->present = present;
    record->persistent = present && intent->persistent;
    record->instance = present ? InstanceOf(intent->payload) : Blob();
    SetOwner(record.get(),
             present && !intent->owner.empty() ? FormerSession(intent->owner, intent->owner_ttl)
                                               : nullptr,
             present ? intent->owner_generation : 0);
    NewGeneration(record);
  };
  for (const auto& [key, record] : records_) {
    const auto it = adopted.find(key);
    const IntentJournal::Intent* const intent = it == adopted.end() ? nullptr : it->second;
    const bool present = intent != nullptr && intent->present;
    if (record->present == present && (!present || record->instance.view() == intent->payload))
      continue;
    if (record->stage == Stage::kGivenUp && intent == nullptr) continue;
    state(record, intent);
  }
  for (const IntentJournal::Intent& intent : intents) {
    if (records_.Find(intent.key) != nullptr) continue;
    auto record = std::make_shared<Record>();
    record->key = intent.key;
    records_.Add(record->key, record);
    state(record, &intent);
  }
}

IntentJournal::Intent FailbackRegistry::Core::ToIntent(const Record& record) const {
  IntentJournal::Intent intent;
  intent.row = record.row;
  intent.key = record.key;
  intent.present = record.present;
  intent.persistent = record.persistent;
  intent.payload = std::string(record.instance.view());
  intent.generation = record.generation;
  intent.given_up = record.stage == Stage::kGivenUp;
  if (record.owner != nullptr) {
    intent.owner = JournalledOwner(record.owner->incarnation, SessionOwner(record.owner->id));
    intent.owner_ttl = record.owner->ttl;
    intent.owner_generation = record.owner_generation;
  }
  return intent;
}

std::vector<IntentJournal::Intent> FailbackRegistry::Core::PresentIntents() const {
  MutexLock lock(&mu_);
  std::vector<IntentJournal::Intent> intents;
  for (const auto& [key, record] : records_) {
    if (record->present && record->stage != Stage::kGivenUp) intents.push_back(ToIntent(*record));
  }
  return intents;
}

void FailbackRegistry::Core::Persist(const RecordPtr& record) {
  if (journal_ == nullptr || record->watch != nullptr || closed_) return;
  if (record->row == 0) record->row = journal_->NewRow();
  record->unwritten = journal_->Put(ToIntent(*record));
  journal_gate_.Queued(record->unwritten, record);
  if (record->stage == Stage::kQueued && record->in_flight == 0) {
    Move(record.get(), Stage::kHeldBack);
  } else if (record->superseded() && record->in_flight == 0) {
    Move(record.get(), Stage::kSuperseded);
  }
}

void FailbackRegistry::Core::EndBeforeChecks(uint64_t session_serial) {
  for (const auto& [key, record] : checked_) {
    Check* const before = record->check.get();
    if (before->owner != session_serial) continue;
    before->owner = before->owner_generation = 0;
    before->present = before->present && before->persistent;
    if (!before->present) before->instance = Blob();
    if (record->row == 0 || closed_) continue;
    // The journal still has it with its owner, for whom another life of the process would wait.
    IntentJournal::Intent intent;
    intent.row = record->row;
    intent.key = record->key;
    intent.present = before->present;
    intent.persistent = before->present;
    intent.payload = std::string(before->instance.view());
    intent.generation = ++last_generation_;
    journal_gate_.Queued(journal_->Put(std::move(intent)));
  }
}

void FailbackRegistry::Core::EndDoubt(Record* record) {
  if (std::exchange(record->doubt, Doubt::kNone) == Doubt::kNone) return;
  // Before the registry was asked it may hold what is not known here.
  if (--doubted_ == 0 && !ask_) journal_->Settle();
}

void FailbackRegistry::Core::Forget(Record* record) {
  if (journal_ == nullptr || record->row == 0 || closed_) return;
  journal_gate_.Queued(journal_->Remove(record->row));
  record->row = 0;
}

void FailbackRegistry::Core::AwaitJournal(const std::shared_ptr<BatchReply>& reply) {
  // Also when it was tried to be written, in vain: the next attempt answers.
  if (journal_ != nullptr && journal_gate_.Await(reply)) ++reply->remaining;
}

void FailbackRegistry::Core::WhenDurable(absl::AnyInvocable<void(absl::Status) &&> done) {
  Entry entry(this);
  if (!entry.ok())
    return std::move(done)(absl::CancelledError("the registry client was shut down"));
  auto reply = std::make_shared<BatchReply>();
  reply->results.resize(1);
  reply->done = [done = std::move(done)](absl::StatusOr<Results> results) mutable {
    std::move(done)(results.ok() ? StatusFromProto(results->front().status()) : results.status());
  };
  bool durable;
  {
    MutexLock lock(&mu_);
    reply->remaining = 1;
    AwaitJournal(reply);
    durable = --reply->remaining == 0;
  }
  if (durable) std::move(reply->done)(std::move(reply->results));
  Pump();
}

void FailbackRegistry::Core::OnJournal(uint64_t sequence, const absl::Status& status) {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    Effects effects;
    {
      MutexLock lock(&mu_);
      journal_gate_.Tried(sequence, status.ok());
      ReleaseReplies(status, &effects);
      while (const RecordPtr record = journal_gate_.TakeRecord()) {
        // Also when it could not be written: the registry is to know, even if the disk does not.
        if (record->stage == Stage::kHeldBack) Enqueue(record.get());
      }
    }
    CarryOut(std::move(effects));
  }
  Pump();
}

void FailbackRegistry::Core::ReleaseReplies(const absl::Status& status, Effects* effects) {
  while (const std::shared_ptr<BatchReply> reply = journal_gate_.TakeReply()) {
    for (auto& result : reply->results) {
      if (status.ok() || result.has_status()) continue;
      result.clear_state();
      *result.mutable_status() =
          StatusToProto(WithRetryDelay(Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY,
                                               absl::StrCat(status.message(), kNotDurable)),
                                       absl::Seconds(1)));
    }
    if (--reply->remaining > 0) continue;
    effects->Answer(reply);
  }
}

void FailbackRegistry::Core::PersistSnapshot(const std::shared_ptr<Watch>& watch) {
  if (journal_ == nullptr || watch->set.stale() || IsArmed(watch->snapshot_timer)) return;
  watch->snapshot_timer = After(kSnapshotPeriod, [watch](Core* core, Effects*) {
    core->mu_.AssertHeld();
    const RecordPtr record = watch->record.lock();
    if (record == nullptr || record->stage == Stage::kNone || !watch->set.known() ||
        watch->set.stale())
      return;
    core->journal_gate_.Queued(
        core->journal_->PutSnapshot({watch->canonical_selector, watch->set.Whole()}));
  });
}

void FailbackRegistry::Core::WriteSnapshot(Watch* watch) {
  if (!IsArmed(watch->snapshot_timer)) return;
  watch->snapshot_timer.Cancel();
  journal_gate_.Queued(journal_->PutSnapshot({watch->canonical_selector, watch->set.Whole()}));
}

void FailbackRegistry::Core::DropFromJournal(const std::vector<std::string>& selectors) {
  if (journal_ == nullptr || closed_) return;
  for (const std::string& selector : selectors) {
    journal_gate_.Queued(journal_->PutSnapshot({selector, ""}));
  }
}

}  // namespace failback
