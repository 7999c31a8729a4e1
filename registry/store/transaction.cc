#include "registry/store/transaction.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/shared_limit.h"

namespace failback {
namespace {

// A claimed rank may be above those that this store remembers giving, as after a power cut with
// durability below `full`, but not so far that it could wear out the counter.
constexpr uint64_t kMostRanksLost = 1000000;

SharedLimit LimitOfInstances(const State::Options& options) {
  return {"instances", "limits.max_instances", options.max_instances};
}
SharedLimit LimitOfSessions(const State::Options& options) {
  return {"sessions", "limits.max_sessions", options.max_sessions};
}
SharedLimit LimitOfIncarnations(const State::Options& options) {
  return {"clients that are remembered", "limits.max_incarnations", options.max_incarnations};
}
SharedLimit LimitOfTombstones(const State::Options& options) {
  return {"keys whose instances are gone", "limits.max_tombstones", options.max_tombstones};
}

// They go by themselves.
constexpr absl::Duration kTombstonesDelay = absl::Seconds(10);

absl::Status TooManyTombstones(const SharedLimit& limit, bool in_all) {
  return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED,
                                absl::StrCat(limit.Text(in_all), "; they are forgotten with time"),
                                {{"limit", absl::StrCat(in_all ? limit.limit : limit.share())}}),
                        kTombstonesDelay);
}

// Who holds a key that was registered without a session, on top of a fence.
constexpr char kDetachedHolder[] = "a registration without a session";

// A refusal for the sake of a later incarnation, with who holds the key: the client's name, else
// the incarnation.
absl::Status WithHolder(const absl::Status& status, const RecordVersion& current) {
  if (ReasonOf(status) != registry::v1::ERROR_REASON_SUPERSEDED || !current.instance) {
    return status;
  }
  std::string holder = kDetachedHolder;
  if (current.owner != nullptr) {
    const std::string& name = current.owner->client_name;
    holder = name.empty() ? current.owner->name : name;
  }
  return Refusal(registry::v1::ERROR_REASON_SUPERSEDED, std::string(status.message()),
                 {{"rank", ReasonMetadata(status, "rank").value_or("0")},
                  {"generation", ReasonMetadata(status, "generation").value_or("0")},
                  {"holder", std::move(holder)}});
}

}  // namespace

State::Transaction::Transaction(State* state, Moment now)
    : state_(state),
      now_(now),
      next_rank_(state->next_rank_),
      next_session_row_(state->next_session_row_) {}

State::Transaction::~Transaction() {
  if (finished_) return;
  for (Staged& staged : staged_) staged.record->staged = 0;
  for (Record* record : created_) state_->DeleteRecord(record);
  for (Session* session : ended_) session->ending = false;
  Finish();
}

void State::Transaction::Finish() {
  for (Incarnation* incarnation : touched_) incarnation->owned_more = 0;
  for (OwnerTotals* totals : touched_owners_) {
    totals->sessions_more = totals->tombstones_more = totals->instances_more = 0;
    totals->touched = false;
  }
  finished_ = true;
}

OwnerTotals* State::Transaction::Touched(OwnerTotals* totals) {
  if (!std::exchange(totals->touched, true)) touched_owners_.push_back(totals);
  return totals;
}

const RecordVersion& State::Transaction::None() {
  static const auto* const none = new RecordVersion;
  return *none;
}

const RecordVersion& State::Transaction::Current(const Record* record) const {
  if (record == nullptr) return None();
  return record->staged == 0 ? record->version : staged_[record->staged - 1].version;
}

RecordVersion& State::Transaction::Stage(Record* record, bool goes_on) {
  if (record->staged == 0) {
    staged_.push_back({record, record->version, goes_on});
    record->staged = static_cast<uint32_t>(staged_.size());
  }
  Staged& staged = staged_[record->staged - 1];
  staged.goes_on = staged.goes_on && goes_on;
  return staged.version;
}

RecordVersion& State::Transaction::EditQuietly(Record* record) { return Stage(record, true); }

RecordVersion& State::Transaction::Edit(Record* record) {
  new_revision_ = true;
  return Stage(record, false);
}

bool State::Transaction::empty() const {
  return staged_.empty() && ended_.empty() && opened_.empty() && resumed_.empty() &&
         forgotten_.empty();
}

uint64_t State::Transaction::revision() const {
  return state_->revision_ + (new_revision_ ? 1 : 0);
}

void State::Transaction::SetOwner(RecordVersion& version, Incarnation* owner) {
  if (version.owner == owner) return;
  for (const auto& [incarnation, change] :
       {std::pair<Incarnation*, int>{version.owner, -1}, std::pair<Incarnation*, int>{owner, +1}}) {
    if (incarnation == nullptr) continue;
    if (incarnation->owned_more == 0) touched_.push_back(incarnation);
    incarnation->owned_more += change;
    if (incarnation->totals != nullptr) Touched(incarnation->totals)->instances_more += change;
  }
  version.owner = owner;
}

void State::Transaction::RemoveInstance(RecordVersion& version) {
  if (version.instance) --instances_more_;
  CountDetached(version, -1);
  SetOwner(version, nullptr);
  version = version.WithoutInstance();
}

void State::Transaction::PutInstance(RecordVersion& version, Intent& intent, Incarnation* owner,
                                     int64_t session_row) {
  const uint64_t revision = state_->revision_ + 1;
  CountDetached(version, -1);
  if (!version.instance) {
    ++instances_more_;
    version.create_revision = revision;
    version.create_ms = now_.unix_ms;
  }
  if (version.instance != intent.instance) {
    version.instance = std::move(intent.instance);
    version.modify_revision = revision;
    version.modify_ms = now_.unix_ms;
  }
  SetOwner(version, owner);
  CountDetached(version, +1);
  version.session = session_row;
  version.persistent = intent.persistent;
}

uint32_t State::Transaction::RetentionOf(const Session& session) const {
  return static_cast<uint32_t>(
      std::max(session.ttl_ms, absl::ToInt64Milliseconds(kMinFenceRetention)));
}

bool State::Transaction::MustStoreSeen(const Incarnation& incarnation) const {
  const int64_t age = now_.unix_ms - incarnation.stored_ms;
  return age < 0 || age >= kSeenSlackMs;  // a wall clock may go back
}

void State::Transaction::InOrderOfOpening(std::vector<std::string>* session_ids) const {
  if (session_ids->size() < 2) return;
  std::vector<std::pair<int64_t, std::string>> rows;
  rows.reserve(session_ids->size());
  for (std::string& id : *session_ids) {
    const Session* const session = state_->FindSession(id);
    rows.emplace_back(session == nullptr ? 0 : session->row, std::move(id));
  }
  std::sort(rows.begin(), rows.end());
  for (size_t i = 0; i < rows.size(); ++i) (*session_ids)[i] = std::move(rows[i].second);
}

bool State::Transaction::EndSession(std::string_view session_id, End end, int64_t* removed,
                                    const LeaseEnd& lease_end) {
  Session* const session = FindSession(session_id);
  if (session == nullptr) return false;
  session->ending = true;
  session->lease_end = lease_end;
  ended_.push_back(session);
  if (OwnerTotals* const totals = session->incarnation->totals; totals != nullptr) {
    --Touched(totals)->sessions_more;
  }
  for (Record* record = session->incarnation->first_owned; record != nullptr;
       record = record->next_owned) {
    if (record->version.persistent) continue;
    if (removed != nullptr) ++*removed;
    RecordVersion& version = Edit(record);
    RemoveInstance(version);
    if (end == End::kClosed) version.fence = Fence();
    version.retention_ms = RetentionOf(*session);
  }
  return true;
}

State::Transaction::Opened State::Transaction::AnswerOf(const Session& session,
                                                        const Opening& opening) {
  Opened opened;
  if (!MayResumeSession(session.id, opening.owner)) {
    opened.status = SessionNotOwned();
    return opened;
  }
  opened.session_id = session.id;
  opened.rank = session.incarnation->rank;
  opened.resumed = true;
  return opened;
}

Incarnation* State::Transaction::NewIncarnation(const Opening& opening) {
  uint64_t rank = opening.claimed_rank;
  if (rank == 0 || rank >= next_rank_ + kMostRanksLost || state_->by_rank_.contains(rank) ||
      new_ranks_.contains(rank)) {
    rank = next_rank_;
  }
  new_ranks_.insert(rank);
  next_rank_ = std::max(next_rank_, rank + 1);
  new_incarnations_.push_back(std::make_unique<Incarnation>());
  Incarnation* const incarnation = new_incarnations_.back().get();
  incarnation->rank = rank;
  incarnation->name = opening.incarnation;
  incarnation->client_name = opening.client_name;
  incarnation->owner = opening.owner;
  return incarnation;
}

State::Transaction::Opened State::Transaction::OpenSession(Opening opening) {
  if (const auto it = opened_by_incarnation_.find(opening.incarnation);
      it != opened_by_incarnation_.end()) {
    // The same call twice in one group.
    return AnswerOf(*opened_[it->second], opening);
  }
  Opened opened;
  const auto known = state_->by_name_.find(opening.incarnation);
  Incarnation* incarnation = known == state_->by_name_.end() ? nullptr : known->second;
  if (incarnation != nullptr && !opening.owner.empty() && !incarnation->owner.empty() &&
      incarnation->owner != opening.owner) {
    opened.status = SessionNotOwned();
    return opened;
  }
  if (incarnation != nullptr && incarnation->session != nullptr && !incarnation->session->ending) {
    Session* const session = incarnation->session;
    opened = AnswerOf(*session, opening);
    if (opened.resumed &&
        (session->ttl_ms != opening.ttl_ms || incarnation->client_name != opening.client_name ||
         session->ends_with_stream != opening.ends_with_stream)) {
      resumed_.push_back({session, std::move(opening)});
    }
    return opened;
  }
  const auto alive =
      static_cast<int64_t>(state_->sessions_.size() - ended_.size() + opened_.size());
  opened.status = LimitOfSessions(state_->options_).Check(alive, SessionsOf(opening.owner));
  if (!opened.status.ok()) return opened;
  if (incarnation == nullptr) {
    opened.status = CheckRoom(opening.owner);
    if (!opened.status.ok()) return opened;
    incarnation = NewIncarnation(opening);
  } else {
    reopened_.push_back({incarnation, opening.client_name, opening.owner});
  }
  auto session = std::make_unique<Session>();
  session->row = next_session_row_++;
  session->id = std::move(opening.new_session_id);
  session->incarnation = incarnation;
  session->ttl_ms = opening.ttl_ms;
  session->ends_with_stream = opening.ends_with_stream;
  opened.session_id = session->id;
  opened.rank = incarnation->rank;
  new_sessions_of_.Add(opening.owner, 1);
  opened_by_incarnation_.emplace(incarnation->name, opened_.size());
  opened_.push_back(std::move(session));
  return opened;
}

std::optional<int64_t> State::Transaction::IncarnationsOf(const std::string& owner) const {
  if (owner.empty()) return std::nullopt;
  const OwnerTotals* const totals = state_->TotalsOf(owner);
  return new_incarnations_of_.Of(owner).value_or(0) +
         (totals == nullptr ? 0 : totals->incarnations);
}

std::optional<int64_t> State::Transaction::SessionsOf(const std::string& owner) const {
  if (owner.empty()) return std::nullopt;
  const OwnerTotals* const totals = state_->TotalsOf(owner);
  return new_sessions_of_.Of(owner).value_or(0) +
         (totals == nullptr ? 0 : totals->sessions + totals->sessions_more);
}

absl::Status State::Transaction::CheckRoom(const std::string& owner) {
  absl::Status status =
      LimitOfIncarnations(state_->options_)
          .Check(static_cast<int64_t>(state_->by_rank_.size() + new_incarnations_.size()),
                 IncarnationsOf(owner));
  if (status.ok()) new_incarnations_of_.Add(owner, 1);
  return status;
}

absl::Status State::Transaction::CheckNewKey(const Incarnation& incarnation, bool registers) {
  const SharedLimit limit = LimitOfTombstones(state_->options_);
  if (limit.limit == 0) return absl::OkStatus();
  OwnerTotals* const totals = incarnation.totals;
  if (state_->tombstones() + new_tombstones_ >= limit.limit) {
    return TooManyTombstones(limit, /*in_all=*/true);
  }
  if (totals != nullptr && totals->tombstones + totals->tombstones_more >= limit.share()) {
    return TooManyTombstones(limit, /*in_all=*/false);
  }
  if (registers) return absl::OkStatus();
  ++new_tombstones_;
  if (totals != nullptr) ++Touched(totals)->tombstones_more;
  return absl::OkStatus();
}

size_t State::Transaction::Purge(size_t most) {
  size_t purged = 0;
  for (const auto& [purge_at, record] : state_->tombstones_) {
    if (purge_at > now_.monotonic_ms || purged == most) break;
    RecordVersion& version = EditQuietly(record);
    const bool mark_stays =
        version.fence.rank != 0 && state_->MarkEndMs(*record) > now_.monotonic_ms;
    version.fence = Fence();
    if (!mark_stays) version.offline = Blob();
    ++purged;
  }
  return purged;
}

std::optional<State::EndedPlace> State::Transaction::PurgeIncarnations(EndedPlace place,
                                                                       size_t most) {
  for (auto it = state_->ended_.upper_bound(place); it != state_->ended_.end(); ++it) {
    if (it->first + absl::ToInt64Milliseconds(kIncarnationMemory) > now_.unix_ms) break;
    if (most-- == 0) return place;
    place = *it;
    Incarnation* const incarnation = state_->by_rank_.find(it->second)->second.get();
    if (incarnation->references == 0 && !opened_by_incarnation_.contains(incarnation->name)) {
      forgotten_.push_back(incarnation);
    }
  }
  return std::nullopt;
}

Session* State::Transaction::FindSession(std::string_view session_id) const {
  const auto it = state_->sessions_.find(session_id);
  if (it == state_->sessions_.end() || it->second->ending) return nullptr;
  return it->second.get();
}

absl::Status State::Transaction::CheckLimits(const RecordVersion& current,
                                             const Incarnation* owner) const {
  // Of the owner that `owner` is an incarnation of; those without one are one owner.
  const SharedLimit limit = LimitOfInstances(state_->options_);
  std::optional<int64_t> of_owner;
  if (owner == nullptr && state_->options_.callers_have_names) {
    of_owner = state_->detached_ + detached_more_;
  } else if (owner != nullptr && owner->totals != nullptr) {
    of_owner = owner->totals->instances + owner->totals->instances_more;
  }
  const bool one_more = !current.instance;
  const bool one_more_of_owner =
      one_more ||
      (owner == nullptr ? current.owner != nullptr
                        : current.owner == nullptr || current.owner->totals != owner->totals);
  if (one_more || one_more_of_owner) {
    const int64_t in_all = one_more ? state_->instances_ + instances_more_ : 0;
    auto status = limit.Check(in_all, one_more_of_owner ? of_owner : std::nullopt);
    if (!status.ok()) return status;
  }
  const int64_t per_session = state_->options_.max_instances_per_session;
  if (per_session > 0 && owner != nullptr && current.owner != owner &&
      owner->owned + owner->owned_more >= per_session) {
    return SharedLimit{"instances in one session", "limits.max_instances_per_session", per_session}
        .Check(per_session, std::nullopt);
  }
  return absl::OkStatus();
}

IntentOutcome State::Transaction::Apply(Session* session, Intent intent) {
  const HashedKey key =
      intent.key_hash == 0 ? HashedKey(intent.key) : HashedKey(intent.key, intent.key_hash);
  return session == nullptr ? ApplyDetached(key, intent) : ApplyInSession(*session, key, intent);
}

Record* State::Transaction::Made(Record* record, const HashedKey& key) {
  if (record != nullptr) return record;
  created_.push_back(state_->NewRecord(key));
  return created_.back();
}

IntentOutcome State::Transaction::ApplyInSession(const Session& session, const HashedKey& key,
                                                 Intent& intent) {
  Record* const record = state_->FindRecord(key);
  const RecordVersion& current = Current(record);
  const uint64_t rank = session.incarnation->rank;
  const bool already = intent.registers
                           ? current.session == session.row && current.instance == intent.instance
                           : !current.instance;
  const Verdict verdict = Decide(current.fence, rank, intent, already);
  if (!verdict.applies) return {WithHolder(verdict.status, current), verdict.generation};
  if (record == nullptr) {
    auto status = CheckNewKey(*session.incarnation, intent.registers);
    if (!status.ok()) return {status, 0};
  }
  if (intent.registers) {
    if (auto status = CheckLimits(current, session.incarnation); !status.ok()) return {status, 0};
  }

  RecordVersion& version = Edit(Made(record, key));
  version.fence = FenceOf(rank, verdict, intent);
  if (intent.registers) {
    PutInstance(version, intent, session.incarnation, session.row);
  } else {
    RemoveInstance(version);
    version.offline = Blob();
  }
  version.retention_ms = RetentionOf(session);
  return {absl::OkStatus(), verdict.generation};
}

// A detached call is a concurrent writer: applied in order of arrival, and the fence stays as it
// is.
IntentOutcome State::Transaction::ApplyDetached(const HashedKey& key, Intent& intent) {
  Record* const record = state_->FindRecord(key);
  const RecordVersion& current = Current(record);
  const bool already = intent.registers
                           ? current.owner == nullptr && current.instance == intent.instance
                           : !current.instance;
  if (already) return {absl::OkStatus(), 0};
  if (intent.registers) {
    if (auto status = CheckLimits(current, nullptr); !status.ok()) return {status, 0};
  }
  RecordVersion& version = Edit(Made(record, key));
  if (intent.registers) {
    PutInstance(version, intent, nullptr, 0);
  } else {
    RemoveInstance(version);
    version.offline = Blob();
  }
  return {absl::OkStatus(), 0};
}

State::Transaction::Marked State::Transaction::SetOffline(std::string_view key,
                                                          const registry::v1::OfflineMark* mark) {
  Record* const record = state_->FindRecord(HashedKey(key));
  const RecordVersion& current = Current(record);
  // A mark that its instance has left behind can be taken off.
  if (!current.instance && (mark != nullptr || !current.offline)) {
    registry::v1::InstanceKey unknown;
    ParseCanonicalKey(std::string(key), &unknown);
    return {Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                    absl::StrCat("key: ", KeyText(unknown), " is not registered")),
            Blob(), false};
  }
  if (mark == nullptr) {
    if (!current.offline) return {};
    (current.instance ? Edit(record) : EditQuietly(record)).offline = Blob();
    return {absl::OkStatus(), Blob(), true};
  }
  registry::v1::OfflineMark before;
  if (current.offline &&
      before.ParseFromArray(current.offline.data(), static_cast<int>(current.offline.size())) &&
      before.reason() == mark->reason() && before.by() == mark->by()) {
    return {absl::OkStatus(), current.offline, false};
  }
  RecordVersion& version = Edit(record);
  version.offline = Blob(mark->SerializeAsString());
  return {absl::OkStatus(), version.offline, true};
}

}  // namespace failback
