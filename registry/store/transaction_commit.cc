// What a transaction writes, and what becomes of the state when that has been written.

#include <algorithm>
#include <utility>
#include <vector>

#include "registry/store/transaction.h"

namespace failback {
namespace {

RecordRow RowOf(const Record& record, const RecordVersion& version) {
  RecordRow row;
  row.id = record.row;
  row.key = record.key();
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
  return row;
}

}  // namespace

// --- The rows.

bool State::Transaction::GoesWithSession(const RecordVersion& before, const RecordVersion& after) {
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
  AddSessionRows(&writes);
  AddRecordRows(&writes);
  return writes;
}

void State::Transaction::AddSessionRows(WriteSet* writes) const {
  const auto add_incarnation = [&](const Incarnation& incarnation, const std::string& client_name,
                                   const std::string& owner) {
    writes->incarnations.push_back(
        {incarnation.rank, incarnation.name, client_name, now_.unix_ms, owner});
  };
  const auto add_session = [&](const Session& session, int64_t ttl_ms, bool ends_with_stream) {
    writes->sessions.push_back(
        {session.row, session.id, session.incarnation->rank, ttl_ms, ends_with_stream});
  };
  for (const Session* session : ended_) {
    writes->removed_sessions.push_back(session->row);
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
    writes->removed_incarnations.push_back(incarnation->rank);
  }
  std::sort(writes->removed_sessions.begin(), writes->removed_sessions.end());
  // Of one that is there twice the later row counts.
  std::stable_sort(
      writes->incarnations.begin(), writes->incarnations.end(),
      [](const IncarnationRow& a, const IncarnationRow& b) { return a.rank < b.rank; });
}

void State::Transaction::AddRecordRows(WriteSet* writes) const {
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
  writes->records.reserve(staged.size());
  for (const Staged* one : staged) {
    if (!one->version.empty()) {
      writes->records.push_back(RowOf(*one->record, one->version));
    } else if (!one->record->version.empty()) {
      writes->removed_records.push_back(one->record->row);
    }
  }
}

// --- The state.

// What an operator would call the difference; kNone when there is none to see.
ChangeLog::Entry State::Transaction::ChangeOf(const RecordVersion& before,
                                              const RecordVersion& after) const {
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
    // The fence is of the one that unregisters; a detached call leaves it as it is.
    const bool fenced =
        after.fence.rank != before.fence.rank || after.fence.generation != before.fence.generation;
    entry.rank = ended ? before.owner->rank : fenced ? after.fence.rank : 0;
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

CommitResult State::Transaction::Commit() {
  CommitResult result;
  result.revision = state_->revision_ = revision();
  state_->next_rank_ = next_rank_;
  state_->next_session_row_ = next_session_row_;
  CommitIncarnations();
  CommitRecords(&result);
  CommitSessions(&result);
  Finish();  // before an owner's totals may go with its last incarnation
  for (Incarnation* incarnation : forgotten_) {
    if (incarnation->references == 0) state_->Forget(incarnation);
  }
  return result;
}

void State::Transaction::CommitIncarnations() {
  for (auto& incarnation : new_incarnations_) {
    incarnation->last_seen_ms = incarnation->stored_ms = now_.unix_ms;
    state_->AddIncarnation(std::move(incarnation));
  }
  for (const auto& [incarnation, client_name, owner] : reopened_) {
    if (incarnation->owner.empty()) state_->SetOwner(incarnation, owner);
    Rename(incarnation, client_name);
    state_->ended_.erase({incarnation->last_seen_ms, incarnation->rank});
    incarnation->last_seen_ms = incarnation->stored_ms = now_.unix_ms;
  }
  for (const Resumed& resumed : resumed_) {
    resumed.session->ttl_ms = resumed.settings.ttl_ms;
    resumed.session->ends_with_stream = resumed.settings.ends_with_stream;
    Incarnation* const incarnation = resumed.session->incarnation;
    Rename(incarnation, resumed.settings.client_name);
    incarnation->last_seen_ms = incarnation->stored_ms = now_.unix_ms;
  }
}

void State::Transaction::CommitRecords(CommitResult* result) {
  // Changes are gathered by service; those of one call are mostly of one service.
  absl::flat_hash_map<const Service*, size_t> place;
  const Service* last_service = nullptr;
  size_t last_place = 0;
  for (auto& [record, version, goes_on] : staged_) {
    record->staged = 0;
    ChangeLog::Entry change = ChangeOf(record->version, version);
    if (change.kind != ChangeLog::Kind::kNone) state_->changes_.Add(std::move(change));
    if (record->version.instance != version.instance ||
        (version.instance && record->version.offline != version.offline)) {
      if (record->service != last_service) {
        last_service = record->service;
        const auto [it, inserted] = place.try_emplace(last_service, result->services.size());
        if (inserted) {
          result->services.push_back({last_service->key, {}, 0});
          if (result->services.size() == 1) result->services[0].instances.reserve(staged_.size());
        }
        last_place = it->second;
      }
      result->services[last_place].instances.push_back({record->version.Shown(), version.Shown()});
    }
    state_->SetVersion(record, std::move(version), now_.monotonic_ms, goes_on);
  }
  for (const auto& [service, index] : place) {
    result->services[index].size_after = static_cast<int64_t>(service->present.size());
  }
  for (const Staged& staged : staged_) {
    if (staged.record->version.empty()) state_->DeleteRecord(staged.record);
  }
}

void State::Transaction::CommitSessions(CommitResult* result) {
  for (Session* session : ended_) {
    session->incarnation->session = nullptr;
    if (session->incarnation->totals != nullptr) --session->incarnation->totals->sessions;
    if (MustStoreSeen(*session->incarnation)) session->incarnation->stored_ms = now_.unix_ms;
    session->incarnation->last_seen_ms = now_.unix_ms;
    state_->ended_.emplace(now_.unix_ms, session->incarnation->rank);
    result->ended_sessions.push_back(session->id);
    state_->sessions_.erase(result->ended_sessions.back());
  }
  for (auto& session : opened_) {
    session->incarnation->session = session.get();
    if (session->incarnation->totals != nullptr) ++session->incarnation->totals->sessions;
    state_->ended_.erase({session->incarnation->last_seen_ms, session->incarnation->rank});
    const std::string_view id = session->id;
    state_->sessions_.emplace(id, std::move(session));
  }
}

}  // namespace failback
