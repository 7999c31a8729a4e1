#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/failback/failback_core.h"
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
constexpr char kLostWithSession[] =
    "the journal was put back to an earlier moment and does not know this instance, and the "
    "registry does not hold it any more: the session that it was in has ended. State it again or "
    "retry it to register it as it was, or cancel it";

}  // namespace

// What one listing of the upstream has shown so far.
struct FailbackRegistry::Core::Audit {
  uint64_t serial = 0;
  uint64_t epoch = 0;
  // Asked for what a journal that was put back cannot know.
  bool about_doubted = false;
  // In which session it began.
  uint64_t session = 0;
  ListRequest request;
  // The registry's policy may hide some of it: what is not listed is not known to be missing.
  bool part = false;
  struct Listed {
    std::string instance;  // canonical
    uint64_t generation = 0;
    bool persistent = false;
  };
  // By canonical key.
  absl::flat_hash_map<std::string, Listed> listed;
};

void FailbackRegistry::Core::AuditSoon() {
  if (options_.anti_entropy_interval <= absl::ZeroDuration()) return;
  audit_timer_.Cancel();
  absl::Duration wait =
      std::min(kSettling + kSpread * options_.random(), options_.anti_entropy_interval);
  const UpstreamSession::State session = session_->state();
  if (session.session_serial == 1 && session.info.resumed()) {
    // An earlier process of this incarnation opened the session, and without a journal this one
    // does not know what that was sent. A client that still wants it has as long to say so as a
    // session lives unheard of. With one, that process may be alive: until then it has noticed.
    wait += FromProto(session.info.ttl());
  }
  audit_timer_ = After(wait, [](Core* core, Effects* effects) {
    core->mu_.AssertHeld();
    core->BeginAudit(effects);
  });
}

void FailbackRegistry::Core::ArmAudit() {
  if (options_.anti_entropy_interval <= absl::ZeroDuration() || IsArmed(audit_timer_)) return;
  // 75 to 125 %: agents that started together drift apart.
  const absl::Duration wait = options_.anti_entropy_interval * (0.75 + 0.5 * options_.random());
  audit_timer_ = After(wait, [](Core* core, Effects* effects) {
    core->mu_.AssertHeld();
    core->BeginAudit(effects);
  });
}

void FailbackRegistry::Core::BeginAudit(Effects* effects) {
  const UpstreamSession::State session = session_->state();
  if (closed_ || draining_) return;
  if (session.phase != UpstreamSession::Phase::kUp || resyncing_) return ArmAudit();
  if (session.contested) {
    // What another process has stated under this incarnation is not ours to remove.
    audit_timer_ = After(FromProto(session.info.ttl()), [](Core* core, Effects* effects) {
      core->mu_.AssertHeld();
      core->BeginAudit(effects);
    });
    return;
  }
  auto audit = std::make_shared<Audit>();
  audit->serial = ++audit_serial_;
  audit->session = seen_session_serial_;
  audit->request.set_incarnation(incarnation_);
  audit->request.set_page_size(kMaxPageSize);
  effects->List(audit);
}

void FailbackRegistry::Core::ListPage(const std::shared_ptr<Audit>& audit) {
  // Not kept in the callback: the upstream would hold itself.
  std::shared_ptr<Registry> upstream;
  {
    MutexLock lock(&mu_);
    upstream = upstream_;
  }
  if (upstream == nullptr) return;
  upstream->List(audit->request,
                 [weak = weak_from_this(), audit](absl::StatusOr<ListResponse> response) {
                   if (auto self = weak.lock()) self->OnPage(audit, std::move(response));
                 });
}

void FailbackRegistry::Core::OnPage(const std::shared_ptr<Audit>& audit,
                                    absl::StatusOr<ListResponse> response) {
  Entry entry(this);
  if (!entry.ok()) return;
  Effects effects;
  {
    MutexLock lock(&mu_);
    // A page of another life, or from the memory of an agent, compares with nothing. (In another
    // session of the same life it does: all that was sent again since is no longer idle.)
    const bool usable = response.ok() && !response->stale() && !draining_ &&
                        (audit->epoch == 0 || audit->epoch == response->epoch());
    if (!usable) {
      audit->about_doubted ? AskAgainLater() : ArmAudit();
      return;
    }
    audit->epoch = response->epoch();
    if (response->coverage() == registry::v1::LIST_COVERAGE_PART) audit->part = true;
    for (const InstanceRecord& row : response->records()) {
      audit->listed[CanonicalKey(row.instance().key())] = {
          CanonicalRegistration(row.instance()), row.generation(), row.instance().persistent()};
    }
    if (response->next_page_token().empty() ||
        response->next_page_token() == audit->request.page_token()) {
      if (audit->about_doubted) {
        SettleDoubted(*audit, &effects);
      } else {
        Repair(*audit, &effects);
      }
      ArmAudit();
    } else {
      audit->request.set_page_token(response->next_page_token());
      effects.List(audit);
    }
  }
  CarryOut(std::move(effects));
  Pump();
}

void FailbackRegistry::Core::Repair(const Audit& audit, Effects* effects) {
  int64_t missing = 0, different = 0, extra = 0;
  std::vector<RecordPtr> gone;
  for (const auto& [key, record] : records_) {
    // What was cancelled, or is not known here, is kept for as long as the registry holds the key.
    const bool kept = record->doubt == Doubt::kOfRegistry;
    if ((record->stage == Stage::kGivenUp || kept) && record->in_flight == 0 &&
        record->touched < audit.serial && !audit.part &&
        audit.listed.find(record->key) == audit.listed.end()) {
      gone.push_back(record);
    }
    if (kept && audit.listed.find(record->key) != audit.listed.end()) {
      record->kept_session = audit.session;
    }
    const bool idle = (record->stage == Stage::kSettled || record->stage == Stage::kTombstone) &&
                      record->touched < audit.serial;
    if (!idle) continue;
    const auto it = audit.listed.find(record->key);
    if (record->present) {
      if (it != audit.listed.end() && it->second.instance == record->instance.view()) continue;
      if (it == audit.listed.end() && audit.part) continue;
      ++(it == audit.listed.end() ? missing : different);
      // The same intent again, under its number: the registry applies it to what a concurrent
      // writer left.
      record->acknowledged = 0;
      Enqueue(record.get());
    } else if (it != audit.listed.end()) {
      ++extra;
      record->SetHeld(audit.session, it->second.persistent);
      NewGeneration(record);
    }
  }
  for (const RecordPtr& record : gone) {
    if (record->doubt == Doubt::kOfRegistry && !record->persistent &&
        record->kept_session != seen_session_serial_) {
      LostWithSession(record, effects);
    } else {
      Erase(record, absl::OkStatus(), effects);
    }
  }
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
  effects->Log(LogLevel::kWarning, "the registry differed from the intents, which are sent again",
               {{"upstream", options_.upstream_name},
                {"missing", absl::StrCat(missing)},
                {"different", absl::StrCat(different)},
                {"extra", absl::StrCat(extra)}});
}

void FailbackRegistry::Core::AskAboutDoubted(Effects* effects) {
  if (!ask_ || asking_ || closed_ || session_->state().phase != UpstreamSession::Phase::kUp) {
    return;
  }
  asking_ = true;
  auto audit = std::make_shared<Audit>();
  audit->about_doubted = true;
  audit->session = seen_session_serial_;
  audit->request.set_incarnation(incarnation_);
  audit->request.set_page_size(kMaxPageSize);
  effects->List(audit);
}

void FailbackRegistry::Core::AskAgainLater() {
  asking_ = false;
  ask_timer_ = After(kAskAgain, [](Core* core, Effects* effects) {
    core->mu_.AssertHeld();
    core->AskAboutDoubted(effects);
  });
}

void FailbackRegistry::Core::SettleDoubted(const Audit& audit, Effects* effects) {
  ask_ = asking_ = false;
  int64_t taken = 0, parked = 0;
  std::vector<RecordPtr> doubted;
  for (const auto& [key, record] : records_) {
    if (record->doubt != Doubt::kNone) doubted.push_back(record);
  }
  for (const auto& [key, listed] : audit.listed) {
    last_generation_ = std::max(last_generation_, listed.generation);
  }
  const int64_t kept = KeepUnknown(audit, effects);
  for (const RecordPtr& record : doubted) {
    const auto it = audit.listed.find(record->key);
    const bool listed = it != audit.listed.end();
    if (listed) {
      record->SetHeld(audit.session, it->second.persistent);
    } else {
      record->held_in = Record::kNotHeld;
    }
    if (record->present && !listed && record->stage != Stage::kGivenUp) {
      // Unregistered since, or never registered, or gone with its session: unknown here.
      ++parked;
      AttemptFailed(record,
                    absl::FailedPreconditionError(
                        "the journal was put back to an earlier moment, and the registry does not "
                        "hold this instance: it may have been unregistered since. State it again "
                        "or retry it to register it as the journal has it, or cancel it"),
                    NextStep::kPark, /*sent=*/false, effects);
      continue;
    }
    EndDoubt(record.get());
    if (listed && it->second.generation > record->generation) {
      // Said later than what the journal has.
      ++taken;
      record->present = true;
      record->persistent = it->second.persistent;
      record->instance = Blob(it->second.instance);
      NewGeneration(record);
    } else {
      Enqueue(record.get());
    }
  }
  if (doubted_ == 0) journal_->Settle();
  effects->Log(LogLevel::kError,
               "the registry has said what of a journal that was put back still holds",
               {{"upstream", options_.upstream_name},
                {"intents", absl::StrCat(doubted.size())},
                {"newer_at_the_registry", absl::StrCat(taken)},
                {"parked", absl::StrCat(parked)},
                {"only_at_the_registry", absl::StrCat(kept)}});
}

int64_t FailbackRegistry::Core::KeepUnknown(const Audit& audit, Effects* effects) {
  int64_t kept = 0;
  for (const auto& [key, listed] : audit.listed) {
    if (records_.Find(key) != nullptr) continue;
    ++kept;
    auto record = std::make_shared<Record>();
    record->key = key;
    record->present = true;
    record->persistent = listed.persistent;
    record->instance = Blob(listed.instance);
    record->generation = listed.generation;
    record->touched = audit_serial_;
    record->doubt = Doubt::kOfRegistry;
    record->kept_session = audit.session;
    record->SetHeld(audit.session, listed.persistent);
    ++doubted_;
    records_.Add(record->key, record);
    Move(record.get(), Stage::kHeldBack);
    AttemptFailed(record, absl::FailedPreconditionError(kLeftThere), NextStep::kPark,
                  /*sent=*/false, effects);
  }
  return kept;
}

void FailbackRegistry::Core::LostWithSession(const RecordPtr& record, Effects* effects) {
  // No hand has removed it, so it is not forgotten. As what the journal knows and the registry does
  // not hold: in the journal, in doubt, in the next life too.
  record->doubt = Doubt::kOfJournal;
  record->held_in = Record::kNotHeld;
  Persist(record);
  AttemptFailed(record, absl::FailedPreconditionError(kLostWithSession), NextStep::kPark,
                /*sent=*/false, effects);
}

}  // namespace failback
