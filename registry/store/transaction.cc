#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/shared_limit.h"
#include "registry/store/state.h"

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

// A refusal for the sake of a later incarnation, with who holds the key: the client's name, else
// the incarnation.
absl::Status WithHolder(const absl::Status& status, const Version& current) {
  if (ReasonOf(status) != registry::v1::ERROR_REASON_SUPERSEDED || current.owner == nullptr) {
    return status;
  }
  const std::string& name = current.owner->client_name;
  return Refusal(registry::v1::ERROR_REASON_SUPERSEDED, std::string(status.message()),
                 {{"rank", ReasonMetadata(status, "rank").value_or("0")},
                  {"generation", ReasonMetadata(status, "generation").value_or("0")},
                  {"holder", name.empty() ? current.owner->name : name}});
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

const Version& State::Transaction::None() {
  static const auto* const none = new Version;
  return *none;
}

const Version& State::Transaction::Current(const Record* record) const {
  if (record == nullptr) return None();
  return record->staged == 0 ? record->version : staged_[record->staged - 1].version;
}

Version& State::Transaction::Stage(Record* record, bool goes_on) {
  if (record->staged == 0) {
    staged_.push_back({record, record->version, goes_on});
    record->staged = static_cast<uint32_t>(staged_.size());
  }
  Staged& staged = staged_[record->staged - 1];
  staged.goes_on = staged.goes_on && goes_on;
  return staged.version;
}

Version& State::Transaction::EditQuietly(Record* record) { return Stage(record, true); }

Version& State::Transaction::Edit(Record* record) {
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

void State::Transaction::SetOwner(Version& version, Incarnation* owner) {
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

void State::Transaction::RemoveInstance(Version& version) {
  if (version.instance) --instances_more_;
  CountDetached(version, -1);
  SetOwner(version, nullptr);
  version = version.WithoutInstance();
}

void State::Transaction::PutInstance(Version& version, Intent& intent, Incarnation* owner,
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
  return static_cast<uint32_t>(std::max(session.ttl_ms, state_->options_.min_retention_ms));
}

bool State::Transaction::MustStoreSeen(const Incarnation& incarnation) const {
  const int64_t age = now_.unix_ms - incarnation.stored_ms;
  return age < 0 || age >= state_->options_.seen_slack_ms;  // a wall clock may go back
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
    Version& version = Edit(record);
    RemoveInstance(version);
    if (end == End::kClosed) version.fence = Fence();
    version.retention_ms = RetentionOf(*session);
  }
  return true;
}

State::Transaction::Opened State::Transaction::OpenSession(Opening opening) {
  Opened opened;
  if (const auto it = opened_by_incarnation_.find(opening.incarnation);
      it != opened_by_incarnation_.end()) {
    // The same call twice in one group.
    const Session& session = *opened_[it->second];
    if (!MayResumeSession(session.id, opening.owner)) {
      opened.status = SessionNotOwned();
      return opened;
    }
    opened.session_id = session.id;
    opened.rank = session.incarnation->rank;
    opened.resumed = true;
    return opened;
  }
  const auto known = state_->by_name_.find(opening.incarnation);
  Incarnation* incarnation = known == state_->by_name_.end() ? nullptr : known->second;
  if (incarnation != nullptr && !opening.owner.empty() && !incarnation->owner.empty() &&
      incarnation->owner != opening.owner) {
    opened.status = SessionNotOwned();
    return opened;
  }
  if (incarnation != nullptr && incarnation->session != nullptr && !incarnation->session->ending) {
    Session* const session = incarnation->session;
    if (!MayResumeSession(session->id, opening.owner)) {
      opened.status = SessionNotOwned();
      return opened;
    }
    opened.session_id = session->id;
    opened.rank = incarnation->rank;
    opened.resumed = true;
    if (session->ttl_ms != opening.ttl_ms || incarnation->client_name != opening.client_name ||
        session->ends_with_stream != opening.ends_with_stream) {
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
    uint64_t rank = opening.claimed_rank;
    if (rank == 0 || rank >= next_rank_ + kMostRanksLost || state_->by_rank_.contains(rank) ||
        new_ranks_.contains(rank)) {
      rank = next_rank_;
    }
    new_ranks_.insert(rank);
    next_rank_ = std::max(next_rank_, rank + 1);
    new_incarnations_.push_back(std::make_unique<Incarnation>());
    incarnation = new_incarnations_.back().get();
    incarnation->rank = rank;
    incarnation->name = opening.incarnation;
    incarnation->client_name = opening.client_name;
    incarnation->owner = opening.owner;
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
    Version& version = EditQuietly(record);
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
    if (it->first + state_->options_.incarnation_memory_ms > now_.unix_ms) break;
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

absl::Status State::Transaction::CheckLimits(const Version& current,
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
  const Version& current = Current(record);
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

  Version& version = Edit(Made(record, key));
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
  const Version& current = Current(record);
  const bool already = intent.registers
                           ? current.owner == nullptr && current.instance == intent.instance
                           : !current.instance;
  if (already) return {absl::OkStatus(), 0};
  if (intent.registers) {
    if (auto status = CheckLimits(current, nullptr); !status.ok()) return {status, 0};
  }
  Version& version = Edit(Made(record, key));
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
  const Version& current = Current(record);
  if (mark == nullptr) {
    if (!current.offline) return {};
    (current.instance ? Edit(record) : EditQuietly(record)).offline = Blob();
    return {absl::OkStatus(), Blob(), true};
  }
  if (!current.instance) {
    registry::v1::InstanceKey unknown;
    ParseCanonicalKey(std::string(key), &unknown);
    return {Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                    absl::StrCat("key: ", KeyText(unknown), " is not registered"))};
  }
  registry::v1::OfflineMark before;
  if (current.offline &&
      before.ParseFromArray(current.offline.data(), static_cast<int>(current.offline.size())) &&
      before.reason() == mark->reason() && before.by() == mark->by()) {
    return {absl::OkStatus(), current.offline, false};
  }
  Version& version = Edit(record);
  version.offline = Blob(mark->SerializeAsString());
  return {absl::OkStatus(), version.offline, true};
}

// What an operator would call the difference; kNone when there is none to see.
ChangeLog::Entry State::Transaction::ChangeOf(const Version& before, const Version& after) const {
  using Kind = ChangeLog::Kind;
  ChangeLog::Entry entry;
  entry.instance = after.instance ? after.instance : before.instance;
  entry.rank = after.owner != nullptr ? after.owner->rank : 0;
  if (!before.instance) {
    entry.kind = after.instance ? Kind::kRegistered : Kind::kNone;
  } else if (!after.instance) {
    const bool ended = before.owner != nullptr && before.owner->session != nullptr &&
                       before.owner->session->ending && !before.persistent;
    entry.kind = !ended                  ? Kind::kUnregistered
                 : after.fence.rank == 0 ? Kind::kClosed
                                         : Kind::kExpired;
    if (entry.kind == Kind::kExpired) {
      entry.lease_end = before.owner->session->lease_end;
      if (before.owner->totals != nullptr) entry.revoked = before.owner->totals->revoked;
    }
    const bool by_owner = ended || after.fence.generation != before.fence.generation;
    entry.rank = by_owner && before.owner != nullptr ? before.owner->rank : 0;
  } else if (before.offline != after.offline) {
    entry.kind = after.offline ? Kind::kOffline : Kind::kOnline;
    entry.mark = after.offline;
    entry.rank = 0;
  } else if (before.owner != after.owner) {
    entry.kind = Kind::kReplaced;
  } else if (before.instance != after.instance) {
    entry.kind = Kind::kUpdated;
  }
  if (!after.instance) {
    entry.fence_rank = after.fence.rank;
    entry.fence_ms = after.retention_ms;
  }
  entry.generation = after.fence.generation;
  entry.revision = state_->revision_;
  entry.unix_ms = now_.unix_ms;
  return entry;
}

void State::Transaction::Rename(Incarnation* incarnation, const std::string& client_name) {
  if (incarnation->client_name == client_name) return;
  ChangeLog::Entry entry;
  entry.kind = ChangeLog::Kind::kRenamed;
  entry.former_name = Blob(incarnation->DisplayName());
  entry.rank = incarnation->rank;
  state_->changes_.Add(std::move(entry));
  incarnation->client_name = client_name;
}

bool State::Transaction::GoesWithSession(const Version& before, const Version& after) {
  if (!before.instance || after.instance || before.persistent || before.owner == nullptr) {
    return false;
  }
  const Session* const session = before.owner->session;
  return session != nullptr && session->ending && session->row == before.session &&
         after.fence == before.fence && after.offline == before.offline &&
         after.retention_ms == before.retention_ms;
}

WriteSet State::Transaction::MakeWrites() const {
  WriteSet writes;
  writes.revision = revision();
  writes.next_rank = next_rank_;
  writes.session_count =
      static_cast<int64_t>(state_->sessions_.size() - ended_.size() + opened_.size());
  const auto add_incarnation = [&](const Incarnation& incarnation, const std::string& client_name,
                                   const std::string& owner) {
    writes.incarnations.push_back(
        {incarnation.rank, incarnation.name, client_name, now_.unix_ms, owner});
  };
  const auto add_session = [&](const Session& session, int64_t ttl_ms, bool ends_with_stream) {
    writes.sessions.push_back(
        {session.row, session.id, session.incarnation->rank, ttl_ms, ends_with_stream});
  };
  for (const Session* session : ended_) {
    writes.removed_sessions.push_back(session->row);
    if (MustStoreSeen(*session->incarnation)) {
      add_incarnation(*session->incarnation, session->incarnation->client_name,
                      session->incarnation->owner);
    }
  }
  for (const auto& incarnation : new_incarnations_) {
    add_incarnation(*incarnation, incarnation->client_name, incarnation->owner);
  }
  for (const auto& [incarnation, client_name, owner] : reopened_) {
    add_incarnation(*incarnation, client_name,
                    incarnation->owner.empty() ? owner : incarnation->owner);
  }
  for (const Resumed& resumed : resumed_) {
    add_incarnation(*resumed.session->incarnation, resumed.settings.client_name,
                    resumed.session->incarnation->owner);
    add_session(*resumed.session, resumed.settings.ttl_ms, resumed.settings.ends_with_stream);
  }
  for (const auto& session : opened_) {
    add_session(*session, session->ttl_ms, session->ends_with_stream);
  }
  for (const Incarnation* incarnation : forgotten_) {
    writes.removed_incarnations.push_back(incarnation->rank);
  }
  // In the order in which the file has them: sessions end in any order, and each page of a large
  // group is to be read and written once.
  std::vector<const Staged*> staged;
  staged.reserve(staged_.size());
  for (const Staged& one : staged_) {
    if (!GoesWithSession(one.record->version, one.version)) staged.push_back(&one);
  }
  const auto by_row = [](const Staged* a, const Staged* b) {
    return a->record->row < b->record->row;
  };
  if (!std::is_sorted(staged.begin(), staged.end(), by_row)) {
    std::sort(staged.begin(), staged.end(), by_row);
  }
  writes.records.reserve(staged.size());
  for (const Staged* one : staged) {
    const Record* const record = one->record;
    const Version& version = one->version;
    if (version.empty()) {
      if (!record->version.empty()) writes.removed_records.push_back(record->row);
      continue;
    }
    RecordRow row;
    row.id = record->row;
    row.key = record->key();
    row.instance = version.instance;
    row.offline = version.offline;
    row.fence_rank = version.fence.rank;
    row.fence_generation = version.fence.generation;
    row.fence_digest = version.fence.digest;
    row.fence_registers = version.fence.registers;
    row.owner_rank = version.owner == nullptr ? 0 : version.owner->rank;
    row.session = version.session;
    row.create_revision = version.create_revision;
    row.modify_revision = version.modify_revision;
    row.create_ms = version.create_ms;
    row.modify_ms = version.modify_ms;
    row.retention_ms = version.retention_ms;
    row.persistent = version.persistent;
    writes.records.push_back(std::move(row));
  }
  std::sort(writes.removed_sessions.begin(), writes.removed_sessions.end());
  // Of one that is there twice the later row counts.
  std::stable_sort(
      writes.incarnations.begin(), writes.incarnations.end(),
      [](const IncarnationRow& a, const IncarnationRow& b) { return a.rank < b.rank; });
  return writes;
}

CommitResult State::Transaction::Commit() {
  State& state = *state_;
  CommitResult result;
  result.revision = state.revision_ = revision();
  state.next_rank_ = next_rank_;
  state.next_session_row_ = next_session_row_;

  for (auto& incarnation : new_incarnations_) {
    incarnation->last_seen_ms = incarnation->stored_ms = now_.unix_ms;
    state.AddIncarnation(std::move(incarnation));
  }
  for (const auto& [incarnation, client_name, owner] : reopened_) {
    if (incarnation->owner.empty()) state.SetOwner(incarnation, owner);
    Rename(incarnation, client_name);
    state.ended_.erase({incarnation->last_seen_ms, incarnation->rank});
    incarnation->last_seen_ms = incarnation->stored_ms = now_.unix_ms;
  }
  for (const Resumed& resumed : resumed_) {
    resumed.session->ttl_ms = resumed.settings.ttl_ms;
    resumed.session->ends_with_stream = resumed.settings.ends_with_stream;
    Incarnation* const incarnation = resumed.session->incarnation;
    Rename(incarnation, resumed.settings.client_name);
    incarnation->last_seen_ms = incarnation->stored_ms = now_.unix_ms;
  }

  // Changes are gathered by service; those of one call are mostly of one service.
  absl::flat_hash_map<const Service*, size_t> place;
  const Service* last_service = nullptr;
  size_t last_place = 0;
  for (auto& [record, version, goes_on] : staged_) {
    record->staged = 0;
    ChangeLog::Entry change = ChangeOf(record->version, version);
    if (change.kind != ChangeLog::Kind::kNone) state.changes_.Add(std::move(change));
    if (record->version.instance != version.instance ||
        (version.instance && record->version.offline != version.offline)) {
      if (record->service != last_service) {
        last_service = record->service;
        const auto [it, inserted] = place.try_emplace(last_service, result.services.size());
        if (inserted) {
          result.services.push_back({last_service->key, {}, 0});
          if (result.services.size() == 1) result.services[0].instances.reserve(staged_.size());
        }
        last_place = it->second;
      }
      result.services[last_place].instances.push_back({record->version.Shown(), version.Shown()});
    }
    state.SetVersion(record, std::move(version), now_.monotonic_ms, goes_on);
  }
  for (const auto& [service, index] : place) {
    result.services[index].size_after = static_cast<int64_t>(service->present.size());
  }
  for (const Staged& staged : staged_) {
    if (staged.record->version.empty()) state.DeleteRecord(staged.record);
  }

  for (Session* session : ended_) {
    session->incarnation->session = nullptr;
    if (session->incarnation->totals != nullptr) --session->incarnation->totals->sessions;
    if (MustStoreSeen(*session->incarnation)) session->incarnation->stored_ms = now_.unix_ms;
    session->incarnation->last_seen_ms = now_.unix_ms;
    state.ended_.emplace(now_.unix_ms, session->incarnation->rank);
    result.ended_sessions.push_back(session->id);
    state.sessions_.erase(result.ended_sessions.back());
  }
  for (auto& session : opened_) {
    session->incarnation->session = session.get();
    if (session->incarnation->totals != nullptr) ++session->incarnation->totals->sessions;
    state.ended_.erase({session->incarnation->last_seen_ms, session->incarnation->rank});
    const std::string_view id = session->id;
    state.sessions_.emplace(id, std::move(session));
  }
  Finish();  // before an owner's totals may go with its last incarnation
  for (Incarnation* incarnation : forgotten_) {
    if (incarnation->references == 0) state.Forget(incarnation);
  }
  return result;
}

}  // namespace failback
