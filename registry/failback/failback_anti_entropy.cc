#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/canonical.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

// An audit that follows a loss begins after the first, and the second at most later, at random: a
// fleet that was sent away together lists neither amid its own recovery nor together.
constexpr absl::Duration kSettling = absl::Seconds(2);
constexpr absl::Duration kSpread = absl::Seconds(4);
// When the registry could not be asked about a journal that was put back.
constexpr absl::Duration kAskAgain = absl::Seconds(1);

// Of an instance that a journal which was put back does not know.
constexpr char kLeftThere[] =
    "the journal was put back to an earlier moment and does not know this instance, which the "
    "registry held when it was asked, and which is left there: state it again, retry it to go on "
    "with it, unregister it, or cancel it to leave it as it is";
constexpr char kNotThere[] =
    "the journal was put back to an earlier moment, and the registry holds no such instance of "
    "this agent: it may have been unregistered since, or another agent has it. State it again or "
    "retry it to register it as the journal has it, or cancel it";
constexpr char kLostWithSession[] =
    "the journal was put back to an earlier moment and does not know this instance, and the "
    "registry does not hold it any more: the session that it was in has ended. State it again or "
    "retry it to register it as it was, or cancel it";

}  // namespace

void Machine::AuditSoon() {
  if (options_.anti_entropy_interval <= absl::ZeroDuration()) return;
  absl::Duration wait =
      std::min(kSettling + kSpread * options_.random(), options_.anti_entropy_interval);
  const UpstreamMachine::State& session = upstream_.state();
  if (session.session_serial == 1 && session.info.resumed()) {
    // An earlier process of this incarnation opened the session, and without a journal this one
    // does not know what that was sent. A client that still wants it has as long to say so as a
    // session lives unheard of. With one, that process may be alive: until then it has noticed.
    wait += FromProto(session.info.ttl());
  }
  audit_alarm_ = After(wait, [this] { BeginAudit(); });
}

void Machine::ArmAudit() {
  if (options_.anti_entropy_interval <= absl::ZeroDuration() || audit_alarm_.armed()) return;
  // 75 to 125 %: agents that started together drift apart.
  const absl::Duration wait = options_.anti_entropy_interval * (0.75 + 0.5 * options_.random());
  audit_alarm_ = After(wait, [this] { BeginAudit(); });
}

void Machine::BeginAudit() {
  const UpstreamMachine::State& session = upstream_.state();
  if (draining_) return;
  if (session.phase != UpstreamMachine::Phase::kUp || resyncing_) return ArmAudit();
  if (session.contested) {
    // What another process has stated under this incarnation is not ours to remove.
    audit_alarm_ = After(FromProto(session.info.ttl()), [this] { BeginAudit(); });
    return;
  }
  auto audit = std::make_unique<Audit>();
  audit->serial = ++audit_serial_;
  audit->session = seen_session_serial_;
  audit->request.set_incarnation(incarnation_);
  audit->request.set_page_size(kMaxPageSize);
  ListPage(std::move(audit));
}

void Machine::ListPage(std::unique_ptr<Audit> audit) {
  Effects::Call& call = out_->calls.emplace_back();
  call.request = audit->request;
  CallSlot slot;
  slot.kind = CallSlot::Kind::kAudit;
  slot.audit = std::move(audit);
  call.id = NewCall(std::move(slot));
}

void Machine::OnPage(std::unique_ptr<Audit> audit, const failback::Answer& answer) {
  const auto* const page = std::get_if<ListResponse>(&answer);
  // A page of another life, or from the memory of an agent, compares with nothing. (In another
  // session of the same life it does: all that was sent again since is no longer idle.)
  const bool usable = page != nullptr && !page->stale() && !draining_ &&
                      (audit->epoch == 0 || audit->epoch == page->epoch());
  if (!usable) return audit->about_doubted ? AskAgainLater() : ArmAudit();
  audit->epoch = page->epoch();
  if (page->coverage() == registry::v1::LIST_COVERAGE_PART) audit->part = true;
  for (const InstanceRecord& row : page->records()) {
    audit->listed[CanonicalKey(row.instance().key())] = {
        CanonicalRegistration(row.instance()), row.generation(), row.instance().persistent()};
  }
  if (!page->next_page_token().empty() && page->next_page_token() != audit->request.page_token()) {
    audit->request.set_page_token(page->next_page_token());
    return ListPage(std::move(audit));
  }
  audit->about_doubted ? SettleDoubted(*audit) : Repair(*audit);
  ArmAudit();
}

void Machine::Repair(const Audit& audit) {
  int64_t missing = 0, different = 0, extra = 0;
  std::vector<RecordPtr> gone, held;
  for (const auto& [key, record] : records_) {
    if (IsGone(audit, record.get())) gone.push_back(record);
    // The registry has it after all: it was put back, too.
    if (record->doubt == Doubt::kOfJournal && record->stage == Stage::kParked &&
        record->touched < audit.serial && audit.listed.count(record->key) > 0) {
      held.push_back(record);
    }
    switch (RepairOne(audit, record)) {
      case Found::kAsItIs:
        break;
      case Found::kMissing:
        ++missing;
        break;
      case Found::kDifferent:
        ++different;
        break;
      case Found::kExtra:
        ++extra;
        break;
    }
  }
  for (const RecordPtr& record : gone) NoteGone(record);
  for (const RecordPtr& record : held) SettleOne(audit, record);
  for (const auto& [key, listed] : audit.listed) {
    if (records_.Find(key) != nullptr || ask_) continue;
    ++extra;
    RecordPtr record = std::make_shared<Record>();
    record->key = key;
    record->SetHeld(audit.session, listed.persistent);
    records_.Add(record->key, record);
    NewGeneration(record);
  }
  if (missing + different + extra == 0) return;
  Log(LogLevel::kWarning, "the registry differed from the intents, which are sent again",
      {{"upstream", options_.upstream_name},
       {"missing", absl::StrCat(missing)},
       {"different", absl::StrCat(different)},
       {"extra", absl::StrCat(extra)}});
}

bool Machine::IsGone(const Audit& audit, Record* record) const {
  const bool kept = record->doubt == Doubt::kOfRegistry;
  if (!kept && record->stage != Stage::kGivenUp) return false;
  const auto it = audit.listed.find(record->key);
  if (it != audit.listed.end()) {
    record->SetHeld(audit.session, it->second.persistent);
    record->kept_session = audit.session;
    record->missed_nanos = 0;
    return false;
  }
  return !audit.part && record->in_flight == 0 && record->touched < audit.serial;
}

// What a hand has removed is forgotten. What has gone with this agent's session is not; and that a
// session has ended, which a list does not say, the next renewal shows.
void Machine::NoteGone(const RecordPtr& record) {
  const bool by_hand = record->doubt != Doubt::kOfRegistry || record->persistent;
  if (!by_hand && record->kept_session != seen_session_serial_) return LostWithSession(record);
  if (by_hand ||
      (record->missed_nanos != 0 && upstream_.confirmed_nanos() > record->missed_nanos)) {
    return Erase(record, absl::OkStatus());
  }
  if (record->missed_nanos == 0) record->missed_nanos = now_.nanos;
}

Machine::Found Machine::RepairOne(const Audit& audit, const RecordPtr& record) {
  const bool idle = (record->stage == Stage::kSettled || record->stage == Stage::kTombstone) &&
                    record->touched < audit.serial;
  if (!idle) return Found::kAsItIs;
  const auto it = audit.listed.find(record->key);
  const bool listed = it != audit.listed.end();
  if (!record->present) {
    if (!listed) return Found::kAsItIs;
    record->SetHeld(audit.session, it->second.persistent);
    NewGeneration(record);
    return Found::kExtra;
  }
  if (listed ? it->second.instance == record->instance.view() : audit.part) return Found::kAsItIs;
  // The same intent again, under its number: the registry applies it to what a concurrent writer
  // left.
  record->acknowledged = 0;
  Enqueue(record.get());
  return listed ? Found::kDifferent : Found::kMissing;
}

void Machine::AskAboutDoubted() {
  if (!ask_ || asking_ || upstream_.state().phase != UpstreamMachine::Phase::kUp) return;
  asking_ = true;
  auto audit = std::make_unique<Audit>();
  audit->about_doubted = true;
  audit->session = seen_session_serial_;
  audit->request.set_incarnation(incarnation_);
  audit->request.set_page_size(kMaxPageSize);
  ListPage(std::move(audit));
}

void Machine::AskAgainLater() {
  asking_ = false;
  ask_alarm_ = After(kAskAgain, [this] { AskAboutDoubted(); });
}

void Machine::SettleDoubted(const Audit& audit) {
  ask_ = asking_ = false;
  std::vector<RecordPtr> doubted;
  for (const auto& [key, record] : records_) {
    if (record->doubt != Doubt::kNone) doubted.push_back(record);
  }
  for (const auto& [key, listed] : audit.listed) {
    // As in Renumber: above the bound no number is valid.
    if (listed.generation >= kMaxGeneration) continue;
    last_generation_ = std::max(last_generation_, listed.generation);
  }
  const int64_t kept = KeepUnknown(audit);
  int64_t taken = 0, parked = 0;
  for (const RecordPtr& record : doubted) {
    const Word word = SettleOne(audit, record);
    taken += word == Word::kTaken ? 1 : 0;
    parked += word == Word::kParked ? 1 : 0;
  }
  Log(LogLevel::kError, "the registry has said what of a journal that was put back still holds",
      {{"upstream", options_.upstream_name},
       {"intents", absl::StrCat(doubted.size())},
       {"newer_at_the_registry", absl::StrCat(taken)},
       {"parked", absl::StrCat(parked)},
       {"only_at_the_registry", absl::StrCat(kept)}});
}

Machine::Word Machine::SettleOne(const Audit& audit, const RecordPtr& record) {
  const auto it = audit.listed.find(record->key);
  const bool listed = it != audit.listed.end();
  if (record->doubt == Doubt::kOfRegistry) {
    listed ? LeaveThere(audit, it->second, record) : LostWithSession(record);
    return Word::kParked;
  }
  if (listed) {
    record->SetHeld(audit.session, it->second.persistent);
  } else {
    record->held_in = Record::kNotHeld;
  }
  if (record->present && !listed && record->stage != Stage::kGivenUp) {
    // Unregistered since, or never registered, or gone with its session: unknown here.
    AttemptFailed(record, absl::FailedPreconditionError(kNotThere), NextStep::kPark,
                  /*sent=*/false);
    return Word::kParked;
  }
  EndDoubt(record.get());
  record->last_status = absl::OkStatus();
  if (!listed || it->second.generation <= record->generation) {
    Persist(record);
    Enqueue(record.get());
    return Word::kAsBefore;
  }
  // Said later than what the journal has.
  record->present = true;
  record->persistent = it->second.persistent;
  record->instance = Blob(it->second.instance);
  NewGeneration(record);
  return Word::kTaken;
}

int64_t Machine::KeepUnknown(const Audit& audit) {
  int64_t kept = 0;
  for (const auto& [key, listed] : audit.listed) {
    if (records_.Find(key) != nullptr) continue;
    ++kept;
    auto record = std::make_shared<Record>();
    record->key = key;
    record->doubt = Doubt::kOfRegistry;
    ++doubted_;
    records_.Add(record->key, record);
    Move(record.get(), Stage::kHeldBack);
    LeaveThere(audit, listed, record);
  }
  return kept;
}

// In the journal, too, or it would be forgotten when it goes with the session of another life.
void Machine::LeaveThere(const Audit& audit, const Audit::Listed& listed, const RecordPtr& record) {
  record->present = true;
  record->persistent = listed.persistent;
  record->instance = Blob(listed.instance);
  record->generation = std::min(listed.generation, last_generation_);
  record->touched = audit_serial_;
  record->kept_session = audit.session;
  record->missed_nanos = 0;
  record->SetHeld(audit.session, listed.persistent);
  Persist(record);
  AttemptFailed(record, absl::FailedPreconditionError(kLeftThere), NextStep::kPark,
                /*sent=*/false);
}

void Machine::LostWithSession(const RecordPtr& record) {
  // No hand has removed it, so it is not forgotten. As what the journal knows and the registry does
  // not hold: in the journal, in doubt, in the next life too.
  record->doubt = Doubt::kOfJournal;
  record->held_in = Record::kNotHeld;
  Persist(record);
  AttemptFailed(record, absl::FailedPreconditionError(kLostWithSession), NextStep::kPark,
                /*sent=*/false);
}

}  // namespace failback
