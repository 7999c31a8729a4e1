// What changes a State: decided against it, written, then committed (registry/store/state.h).
//
// Thread safety: as State.

#ifndef FAILBACK_REGISTRY_STORE_TRANSACTION_H_
#define FAILBACK_REGISTRY_STORE_TRANSACTION_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/model/blob.h"
#include "registry/model/fencing.h"
#include "registry/model/hashed_key.h"
#include "registry/model/shared_limit.h"
#include "registry/store/change_log.h"
#include "registry/store/lease_end.h"
#include "registry/store/records.h"
#include "registry/store/sqlite/storage.h"
#include "registry/store/state.h"
#include "registry/watch/commit_result.h"

namespace failback {

// A group of changes under way. The order of calls within a transaction is: sessions end, sessions
// open, old fences are purged, intents are applied, marks are set.
class State::Transaction {
 public:
  Transaction(State* state, Moment now);
  // Drops what was not committed.
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  enum class End { kExpired, kClosed };
  // Ends a session, and removes its instances that are not persistent. Expiry leaves their fences,
  // closing leaves none. False when the session is not known. Adds how many go to `*removed`.
  bool EndSession(std::string_view session_id, End end, int64_t* removed = nullptr,
                  const LeaseEnd& lease_end = {});

  struct Opening {
    std::string incarnation;
    std::string client_name;
    int64_t ttl_ms = 0;
    bool ends_with_stream = false;
    uint64_t claimed_rank = 0;  // of an earlier life of this store; 0: none
    std::string new_session_id;
    // Empty: callers are not distinguished. Otherwise the incarnation is this owner's from now on,
    // for as long as it is remembered; SESSION_NOT_OWNED when it is another's.
    std::string owner;
  };
  struct Opened {
    absl::Status status;
    std::string session_id;
    uint64_t rank = 0;
    bool resumed = false;
  };
  Opened OpenSession(Opening opening);

  // Forgets fences and marks whose time has passed, of `most` records at most; of how many.
  size_t Purge(size_t most = std::numeric_limits<size_t>::max());
  // Forgets incarnations whose time has passed and that nothing refers to. Looks at `most` at most,
  // in order after `place`, and returns where it stopped; nullopt when all have been looked at.
  std::optional<EndedPlace> PurgeIncarnations(
      EndedPlace place = {std::numeric_limits<int64_t>::min(), 0},
      size_t most = std::numeric_limits<size_t>::max());

  // What is kept under a key, as it was before the transaction; null when that is nothing.
  const Record* Find(std::string_view key) const { return state_->FindRecord(HashedKey(key)); }

  // The session with this id, if it is alive; SESSION_UNKNOWN is the caller's answer otherwise.
  Session* FindSession(std::string_view session_id) const;

  // Puts sessions in the order in which they were opened, which is by and large that of their
  // instances in memory and in the file.
  void InOrderOfOpening(std::vector<std::string>* session_ids) const;

  // Makes room for so many intents.
  void Reserve(size_t intents) { staged_.reserve(staged_.size() + intents); }

  // Decides one intent of a session, or a detached one (`session` null).
  IntentOutcome Apply(Session* session, Intent intent);

  // Puts an operator's mark on an instance, or takes it off (`mark` null). NOT_FOUND for a mark on
  // an instance that is not there. The same reason by the same hand again changes nothing.
  struct Marked {
    absl::Status status;
    Blob mark;  // as it is now
    bool changed = false;
  };
  Marked SetOffline(std::string_view key, const registry::v1::OfflineMark* mark);

  // Whether there is anything to write. An empty transaction needs no commit.
  bool empty() const;
  // The revision after the commit.
  uint64_t revision() const;

  // The rows to write; valid until Commit or the next change.
  WriteSet MakeWrites() const;

  CommitResult Commit();

 private:
  struct Staged {
    Record* record;
    RecordVersion version;
    bool goes_on;  // edited quietly only
  };

  static const RecordVersion& None();
  const RecordVersion& Current(const Record* record) const;
  // The version to change; stages the record, and with it a new revision.
  RecordVersion& Edit(Record* record);
  // The same for an absent record of which something goes: no new revision, and what stays keeps
  // its time.
  RecordVersion& EditQuietly(Record* record);
  RecordVersion& Stage(Record* record, bool goes_on);
  // The answer to an opening of a session that is there; an error when it is another's.
  static Opened AnswerOf(const Session& session, const Opening& opening);
  // An incarnation that is not known yet, with the rank that it claims if it can have that.
  Incarnation* NewIncarnation(const Opening& opening);
  void SetOwner(RecordVersion& version, Incarnation* owner);
  void RemoveInstance(RecordVersion& version);
  IntentOutcome ApplyInSession(const Session& session, const HashedKey& key, Intent& intent);
  IntentOutcome ApplyDetached(const HashedKey& key, Intent& intent);
  // `record`, or, when it is null, a new one under `key`.
  Record* Made(Record* record, const HashedKey& key);
  absl::Status CheckLimits(const RecordVersion& current, const Incarnation* owner) const;
  // Whether one incarnation more may be remembered; counts it.
  absl::Status CheckRoom(const std::string& owner);
  // Whether a key may be kept of which there is no record; counts a fence without an instance.
  absl::Status CheckNewKey(const Incarnation& incarnation, bool registers);
  uint32_t RetentionOf(const Session& session) const;
  // Whether what the storage knows of when it was seen is too old.
  bool MustStoreSeen(const Incarnation& incarnation) const;
  // What MakeWrites returns, in two parts.
  void AddSessionRows(WriteSet* writes) const;
  void AddRecordRows(WriteSet* writes) const;
  // What Commit does, in its order.
  void CommitIncarnations();
  void CommitRecords(CommitResult* result);
  void CommitSessions(CommitResult* result);
  ChangeLog::Entry ChangeOf(const RecordVersion& before, const RecordVersion& after) const;
  // Another name for an incarnation; the history keeps the one before.
  void Rename(Incarnation* incarnation, const std::string& client_name);
  // Whether a record's row in the storage says `after` too, without the row of its session.
  static bool GoesWithSession(const RecordVersion& before, const RecordVersion& after);
  void PutInstance(RecordVersion& version, Intent& intent, Incarnation* owner, int64_t session_row);
  void CountDetached(const RecordVersion& version, int64_t change) {
    if (version.instance && version.owner == nullptr) detached_more_ += change;
  }
  OwnerTotals* Touched(OwnerTotals* totals);
  // With what the transaction has decided. Nullopt: the owner has no name.
  std::optional<int64_t> IncarnationsOf(const std::string& owner) const;
  std::optional<int64_t> SessionsOf(const std::string& owner) const;
  void Finish();

  State* const state_;
  const Moment now_;
  bool new_revision_ = false;
  bool finished_ = false;
  std::vector<Staged> staged_;
  std::vector<Record*> created_;
  std::vector<Incarnation*> touched_;         // have owned_more
  std::vector<OwnerTotals*> touched_owners_;  // have something more
  int64_t new_tombstones_ = 0;                // of keys that were not known
  std::vector<std::unique_ptr<Session>> opened_;
  // Sessions that are alive and were opened again, with the settings of the newest opening.
  struct Resumed {
    Session* session;
    Opening settings;
  };
  std::vector<Resumed> resumed_;
  absl::flat_hash_map<std::string, size_t> opened_by_incarnation_;  // index in opened_
  std::vector<std::unique_ptr<Incarnation>> new_incarnations_;
  absl::flat_hash_set<uint64_t> new_ranks_;
  OwnerCounts new_incarnations_of_;
  OwnerCounts new_sessions_of_;
  // Incarnations that have sessions again, under these names.
  struct Reopened {
    Incarnation* incarnation;
    std::string client_name;
    std::string owner;
  };
  std::vector<Reopened> reopened_;
  std::vector<Session*> ended_;
  std::vector<Incarnation*> forgotten_;
  int64_t instances_more_ = 0;
  int64_t detached_more_ = 0;
  uint64_t next_rank_;
  int64_t next_session_row_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_TRANSACTION_H_
