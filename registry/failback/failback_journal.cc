#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"

namespace failback {
namespace {

// What is refused is reported to the registry all the same (On(Journalled)), so that it goes on.
constexpr char kNotDurable[] =
    "; it is in force and sent to the registry all the same, but is lost if the agent ends before "
    "the journal is written: state it again until it is accepted";

// The same of what an operator has done.
constexpr char kCancelNotDurable[] =
    "; it is done, and is undone if the agent ends before the journal is written: then do it again";

// Of what is in doubt, until the registry has answered.
constexpr char kToBeAsked[] =
    "the journal was put back to an earlier moment: this waits until the registry has said whether "
    "it holds the instance";

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

void Machine::Restore(input::Start kept) {
  last_generation_ = kept.last_generation;
  for (IntentJournal::Intent& intent : kept.intents) {
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
    if (intent.doubt != Doubt::kNone) {
      record->doubt = intent.doubt;
      record->last_status = absl::FailedPreconditionError(kToBeAsked);
      ++doubted_;
    }
    Move(record.get(), Stage::kHeldBack);
    if (intent.given_up) Move(record.get(), Stage::kGivenUp);
    Enqueue(record.get());
  }
  ask_ = unsettled_ = kept.was_put_back;
  for (IntentJournal::Snapshot& snapshot : kept.snapshots) {
    DropFromJournal(last_known_.Put(snapshot.selector, std::move(snapshot.event)));
  }
  if (options_.adopt.has_value()) Adopt(*options_.adopt);
}

Machine::LocalSession* Machine::FormerSession(const std::string& owner, absl::Duration ttl) {
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

void Machine::Adopt(const std::vector<IntentJournal::Intent>& intents) {
  std::unordered_map<std::string_view, const IntentJournal::Intent*> adopted;
  for (const IntentJournal::Intent& intent : intents) adopted[intent.key] = &intent;
  const auto state = [&](const RecordPtr& record, const IntentJournal::Intent* intent) {
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

IntentJournal::Intent Machine::ToIntent(const Record& record) const {
  IntentJournal::Intent intent;
  intent.row = record.row;
  intent.key = record.key;
  intent.present = record.present;
  intent.persistent = record.persistent;
  intent.payload = std::string(record.instance.view());
  intent.generation = record.generation;
  intent.given_up = record.stage == Stage::kGivenUp;
  intent.doubt = record.doubt;
  if (record.owner != nullptr) {
    intent.owner = JournalledOwner(record.owner->incarnation, SessionOwner(record.owner->id));
    intent.owner_ttl = record.owner->ttl;
    intent.owner_generation = record.owner_generation;
  }
  return intent;
}

std::vector<IntentJournal::Intent> Machine::PresentIntents() const {
  std::vector<IntentJournal::Intent> intents;
  for (const auto& [key, record] : records_) {
    if (record->present && record->stage != Stage::kGivenUp) intents.push_back(ToIntent(*record));
  }
  return intents;
}

void Machine::Persist(const RecordPtr& record) {
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

void Machine::EndBeforeChecks(uint64_t session_serial) {
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

void Machine::EndDoubt(Record* record) {
  if (std::exchange(record->doubt, Doubt::kNone) != Doubt::kNone) --doubted_;
}

void Machine::Settle() {
  // Before the registry was asked it may hold what is not known here. Of what is being checked the
  // journal has what was before, which may be in doubt; and a drain ends with records, not with the
  // doubt about them.
  if (!unsettled_ || ask_ || doubted_ > 0 || !checked_.empty() || draining_) return;
  unsettled_ = false;
  if (journal_ != nullptr) journal_->Settle();
}

void Machine::Forget(Record* record) {
  if (journal_ == nullptr || record->row == 0 || closed_) return;
  journal_gate_.Queued(journal_->Remove(record->row));
  record->row = 0;
}

void Machine::AwaitJournal(const ReplyPtr& reply) {
  // Also when it was tried to be written, in vain: the next attempt answers.
  if (journal_ != nullptr && journal_gate_.Await(reply)) ++reply->remaining;
}

void Machine::On(input::WhenDurable in) {
  const auto reply = std::make_shared<BatchReply>();
  reply->ticket = in.ticket;
  reply->as = BatchReply::As::kDurable;
  reply->results.resize(1);
  reply->remaining = 1;
  AwaitJournal(reply);
  Release(reply);
}

void Machine::ReleaseReplies(const absl::Status& status) {
  while (const ReplyPtr reply = journal_gate_.TakeReply()) {
    const char* const lost =
        reply->as == BatchReply::As::kDurable ? kCancelNotDurable : kNotDurable;
    for (auto& result : reply->results) {
      if (status.ok() || result.has_status()) continue;
      result.clear_state();
      *result.mutable_status() = StatusToProto(WithRetryDelay(
          Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY, absl::StrCat(status.message(), lost)),
          absl::Seconds(1)));
    }
    Release(reply);
  }
}

void Machine::PersistSnapshot(Watch* watch) {
  if (journal_ == nullptr || watch->set.stale() || watch->snapshot.armed()) return;
  watch->snapshot = After(kSnapshotPeriod, [this, watch] {
    const RecordPtr record = watch->record.lock();
    if (record == nullptr || record->stage == Stage::kNone || !watch->set.known() ||
        watch->set.stale()) {
      return;
    }
    journal_gate_.Queued(journal_->PutSnapshot({watch->canonical_selector, watch->set.Whole()}));
  });
}

void Machine::WriteSnapshot(Watch* watch) {
  if (!watch->snapshot.armed()) return;
  watch->snapshot.Cancel();
  journal_gate_.Queued(journal_->PutSnapshot({watch->canonical_selector, watch->set.Whole()}));
}

void Machine::DropFromJournal(const std::vector<std::string>& selectors) {
  if (journal_ == nullptr || closed_) return;
  for (const std::string& selector : selectors) {
    journal_gate_.Queued(journal_->PutSnapshot({selector, ""}));
  }
}

}  // namespace failback
