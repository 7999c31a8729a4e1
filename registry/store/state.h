// What the registry knows, as a pure state machine: no threads, no clock, no disk.
//
// It holds one record per key (the instance, the fence of the newest intent accepted, or both),
// sessions, and incarnations with their ranks, and decides intents by the fencing table of
// docs/protocol.md. Every change goes through a Transaction, which decides against the state as it
// is plus what the transaction itself has decided so far, and touches nothing that a reader sees
// until Commit. In between its rows are made durable; when that fails, it is dropped and the state
// is as it was.
//
//   State::Transaction transaction(&state, now);
//   IntentOutcome outcome = transaction.Apply(session, std::move(intent));
//   if (storage.Write(transaction.writes()).ok()) {
//     MutexLock lock(&mu);                        // readers take it too
//     CommitResult result = transaction.Commit();  // result.services: what subscribers see change
//   }
//
// Thread safety: one transaction at a time. Const methods may run beside a transaction that is
// deciding, but not beside its Commit (CheckInvariants beside neither): they look at nothing that
// deciding changes, the table of keys above all.
//
// Invariants (CheckInvariants tests them):
// 1. A record has an instance, a fence or a mark; a record with none of them is not kept.
// 2. Ranks are unique and never given twice; an incarnation stays while a record refers to it.
// 3. An instance with an owner is in its incarnation's list, and its fence has its owner's rank.
// 4. An instance that is not persistent and has an owner has an owner whose session is alive.
// 5. Every record without an instance is due to be purged, every record with one is not.
// 6. A service lists exactly its records that have an instance, sorted by instance id.

#ifndef FAILBACK_REGISTRY_STORE_STATE_H_
#define FAILBACK_REGISTRY_STORE_STATE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/model/blob.h"
#include "registry/model/fencing.h"
#include "registry/model/hashed_key.h"
#include "registry/model/list_scope.h"
#include "registry/model/shared_limit.h"
#include "registry/store/change_log.h"
#include "registry/store/sqlite/storage.h"
#include "registry/watch/commit_result.h"

namespace failback {

struct Incarnation;
class Record;

struct Session {
  int64_t row = 0;
  std::string id;
  Incarnation* incarnation = nullptr;
  int64_t ttl_ms = 0;
  bool ends_with_stream = false;
  bool ending = false;  // in the transaction under way
  LeaseEnd lease_end;   // if its lease ends it
};

// What one owner of incarnations has, where callers are distinguished.
struct OwnerTotals {
  std::string name;
  int64_t incarnations = 0;
  int64_t sessions = 0;
  int64_t tombstones = 0;
  int64_t instances = 0;
  // How people call it, from when it was shut out until it is let in again. Changed by readers.
  Blob revoked;
  // By the transaction under way.
  int64_t sessions_more = 0;
  int64_t tombstones_more = 0;
  int64_t instances_more = 0;
  bool touched = false;
};

struct RecordById;

struct Incarnation {
  // As messages show it.
  const std::string& DisplayName() const { return client_name.empty() ? name : client_name; }

  uint64_t rank = 0;
  std::string name;
  std::string client_name;
  std::string owner;  // empty: the one who opens it; see State::Transaction::OpenSession
  OwnerTotals* totals = nullptr;  // of the owner; null without one
  Session* session = nullptr;
  int64_t last_seen_ms = 0;
  int64_t stored_ms = 0;  // last_seen_ms as the storage has it, at most Options::seen_slack_ms ago
  // Records whose fence or instance refers to this rank.
  int64_t references = 0;
  int64_t tombstones = 0;  // fences without an instance, of this rank
  // The instances that it owns, in a list through Record::next_owned.
  Record* first_owned = nullptr;
  int64_t owned = 0;
  int64_t owned_more = 0;  // by the transaction under way
  // The same by key, from when they are first listed until there are none.
  mutable std::unique_ptr<absl::btree_set<Record*, RecordById>> sorted_owned;
  // While that is made: the first in the list that may be missing in it.
  mutable Record* to_sort = nullptr;
};

// What a record holds at one revision.
struct Version {
  Blob instance;  // canonical bytes, as registered; null when absent
  Blob offline;   // an operator's mark, a serialized OfflineMark; null when there is none
  Fence fence;
  Incarnation* owner = nullptr;  // null: detached, or absent
  int64_t session = 0;           // row of the session that it lives in, or lived in last
  uint64_t create_revision = 0;
  uint64_t modify_revision = 0;
  int64_t create_ms = 0;
  int64_t modify_ms = 0;
  uint32_t retention_ms = 0;  // how long the fence stays after the instance has gone
  bool persistent = false;

  bool empty() const { return !instance && fence.rank == 0 && !offline; }
  // As listed and sent: the instance, with the mark. Null when absent.
  Blob Shown() const;
  // What is left when the instance goes with its session.
  Version WithoutInstance() const;
};

struct Service;

// Its key follows it in memory: who looks for a record, or sorts records, touches one place.
class Record {
 public:
  static Record* New(const HashedKey& key);
  static void Delete(Record* record);
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  std::string_view key() const { return {reinterpret_cast<const char*>(this + 1), key_size_}; }
  size_t hash() const { return hash_; }

  Version version;
  Service* service = nullptr;
  int64_t row = 0;
  Record* previous_owned = nullptr;
  Record* next_owned = nullptr;
  // Of an absent record: when its fence goes, or, without one, its mark.
  int64_t purge_at_ms = 0;
  uint32_t staged = 0;  // place in the transaction under way, from 1

 private:
  explicit Record(const HashedKey& key)
      : key_size_(static_cast<uint32_t>(key.text.size())), hash_(key.hash) {}
  ~Record() = default;

  const uint32_t key_size_;
  const size_t hash_;
};

struct RecordById {
  using is_transparent = void;
  static std::string_view KeyOf(const Record* record) { return record->key(); }
  static std::string_view KeyOf(std::string_view key) { return key; }
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return KeyOf(a) < KeyOf(b);
  }
};

// How many instances are in which state.
struct StateCounts {
  int32_t total = 0;
  int32_t healthy = 0;
  int32_t unhealthy = 0;
  int32_t draining = 0;
  int32_t offline = 0;
  int32_t persistent = 0;
};

struct Service {
  std::string key;  // namespace NUL service
  absl::btree_set<Record*, RecordById> present;
  int64_t records = 0;  // present and absent
  // Of those present, when they were asked for since they changed last.
  mutable StateCounts counts;
  mutable bool counted = false;
};

struct Moment {
  int64_t unix_ms = 0;       // for people
  int64_t monotonic_ms = 0;  // for retention
};

// One line of a listing.
struct ListItem {
  Blob instance;
  std::string incarnation;
  std::string client_name;
  uint64_t rank = 0;
  uint64_t generation = 0;
  uint64_t create_revision = 0;
  uint64_t modify_revision = 0;
  int64_t create_ms = 0;
  int64_t modify_ms = 0;
  std::string session_id;  // of its owner, if that was asked for
};
struct ListQuery {
  // Sorted and disjoint. Services outside are not looked at.
  std::vector<ServiceRange> ranges = {ServiceRange::All()};
  std::string incarnation;  // empty: any
  std::string after;        // canonical keys after this one
  size_t max_items = 1000;
  size_t max_bytes = 2 << 20;
  bool with_sessions = false;
};
struct ListPage {
  std::vector<ListItem> items;
  std::string next_after;  // empty on the last page
  // Ranges, services and instances that were looked at: the work of the page.
  size_t looked = 0;
};

class State {
 public:
  struct Options {
    int64_t max_instances_per_session = 0;  // 0: no limit
    // Of each of these an owner has half at most (registry/model/shared_limit.h). 0: no limit. The
    // last two: incarnations that are remembered, and fences and marks without an instance.
    int64_t max_instances = 0;
    int64_t max_sessions = 0;
    int64_t max_incarnations = 0;
    int64_t max_tombstones = 0;
    // Detached instances, which have no owner, together have the share of one.
    bool callers_have_names = false;
    // A fence without instance stays for the session's TTL, and at least this long.
    int64_t min_retention_ms = 60 * 1000;
    // An incarnation without session and records is remembered this long.
    int64_t incarnation_memory_ms = int64_t{24} * 3600 * 1000;
    // And after a restart up to this much longer, so that the end of a session need not be stored
    // with its incarnation when that was stored so recently.
    int64_t seen_slack_ms = int64_t{3600} * 1000;
    // An operator's mark on an instance that has gone with its session is kept this long, and not
    // shorter than the fence. The fence does not wait for it.
    int64_t offline_memory_ms = int64_t{24} * 3600 * 1000;
  };

  class Transaction;
  // A place among the incarnations without a session: when one was last seen, and its rank.
  using EndedPlace = std::pair<int64_t, uint64_t>;

  explicit State(Options options);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Fills an empty state. Fences without instance are retained from `now` on.
  absl::Status Load(Storage* storage, Moment now);

  uint64_t revision() const { return revision_; }
  const std::string& store_id() const { return store_id_; }
  uint64_t epoch() const { return epoch_; }

  const Session* FindSession(std::string_view session_id) const;
  std::vector<const Session*> Sessions() const;

  // What there is of `namespace NUL service`: its instances, sorted by instance id; or of
  // `namespace NUL`: its services that have instances, sorted by name, as MakeServiceEntry.
  std::vector<Blob> ContentsOf(std::string_view topic) const {
    return topic.back() == '\0' ? Services(topic.substr(0, topic.size() - 1)) : Instances(topic);
  }

  // Of an incarnation: what PrepareList has left to do is done first.
  ListPage List(const ListQuery& query) const;
  // What an incarnation has is sorted when it is listed first. This does a part of it, at most
  // `max` instances, by readers that take turns; true when nothing is left.
  bool PrepareList(const std::string& incarnation, size_t max) const;
  // The first `max` services after `after` in which an incarnation has instances, sorted. As List.
  std::vector<std::string> ServicesOwned(std::string_view incarnation, std::string_view after,
                                         size_t max) const;

  // The record of an instance; null when there is none under this key.
  const Record* FindInstance(std::string_view key) const;
  static ListItem MakeItem(const Record& record);

  // The first `max` services that have instances and whose keys are after `after`, sorted, and
  // their counts, by readers that take turns.
  std::vector<std::string> ListedServices(std::string_view after, size_t max) const;
  StateCounts CountOf(std::string_view service_key) const;

  // What happened last. Returned by readers, changed by Commit.
  const ChangeLog& changes() const { return changes_; }
  // How an incarnation is called; empty for one that is forgotten.
  std::string NameOf(uint64_t rank) const;
  struct Holdings {
    int64_t sessions = 0;
    int64_t instances = 0;
  };
  // Remembers that an owner was shut out, and how people call it; null: it is let in. What it has.
  Holdings SetRevoked(const std::string& owner, Blob name);
  // Whose an incarnation is; empty for one without an owner, or forgotten.
  std::string OwnerOf(std::string_view incarnation) const;

  int64_t instances() const { return instances_; }
  int64_t services() const { return static_cast<int64_t>(listed_services_.size()); }
  int64_t sessions() const { return static_cast<int64_t>(sessions_.size()); }
  int64_t records() const { return instances_ + tombstones(); }
  int64_t tombstones() const { return static_cast<int64_t>(tombstones_.size()); }
  int64_t incarnations() const { return static_cast<int64_t>(by_rank_.size()); }

  // When the next fence or mark is due to be purged, on the monotonic clock; INT64_MAX when none is.
  int64_t NextPurgeMs() const;

  // An explanation of the first invariant that does not hold, or OK. Visits everything.
  absl::Status CheckInvariants() const;

 private:
  class Loader;

  // Goes on to make sorted_owned, by `max` instances. True when it is whole, or null as there are
  // none.
  static bool SortOwned(const Incarnation& incarnation, size_t max);
  std::vector<Blob> Instances(std::string_view service_key) const;
  std::vector<Blob> Services(std::string_view name_space) const;

  struct HashOfKey {
    using is_transparent = void;
    size_t operator()(const HashedKey& key) const { return key.hash; }
    size_t operator()(const Record* record) const { return record->hash(); }
  };
  struct SameKey {
    using is_transparent = void;
    bool operator()(const Record* a, const Record* b) const { return a == b; }
    bool operator()(const Record* record, const HashedKey& key) const {
      return record->hash() == key.hash && record->key() == key.text;
    }
    bool operator()(const HashedKey& key, const Record* record) const {
      return (*this)(record, key);
    }
  };

  Record* FindRecord(const HashedKey& key) const;
  Record* NewRecord(const HashedKey& key);  // of which there is none
  void DeleteRecord(Record* record);
  Service* GetService(std::string_view service_key);
  void AddIncarnation(std::unique_ptr<Incarnation> incarnation);
  void Forget(Incarnation* incarnation);
  // `incarnation` has none yet.
  void SetOwner(Incarnation* incarnation, const std::string& owner);
  const OwnerTotals* TotalsOf(const std::string& owner) const;
  void AddReference(uint64_t rank, int64_t change);
  void CountTombstone(uint64_t rank, int64_t change);
  // `goes_on`: what stays of an absent record keeps its time.
  void SetVersion(Record* record, Version version, int64_t monotonic_ms, bool goes_on = false);
  // When the mark of an absent record goes.
  int64_t MarkEndMs(const Record& record) const;

  const Options options_;
  std::string store_id_;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;

  // What readers look at: changed by Commit only.
  absl::flat_hash_map<std::string_view, std::unique_ptr<Session>> sessions_;  // by id
  absl::btree_map<std::string_view, Service*> listed_services_;  // those with instances
  absl::flat_hash_map<std::string_view, Incarnation*> by_name_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Incarnation>> by_rank_;
  std::set<EndedPlace> ended_;  // incarnations without a session
  absl::flat_hash_map<absl::string_view, std::unique_ptr<OwnerTotals>> owners_;  // by name
  int64_t instances_ = 0;
  int64_t detached_ = 0;                              // of them, those without an owner
  std::set<std::pair<int64_t, Record*>> tombstones_;  // by purge_at_ms
  ChangeLog changes_;

  // What only transactions look at: they change it while they decide, beside readers.
  absl::flat_hash_set<Record*, HashOfKey, SameKey> by_key_;
  absl::flat_hash_map<std::string_view, std::unique_ptr<Service>> services_;
  Service* last_service_ = nullptr;  // that was asked for; keys of one call are mostly of one
  uint64_t next_rank_ = 1;
  int64_t next_record_row_ = 1;
  int64_t next_session_row_ = 1;
};

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
    Version version;
    bool goes_on;  // edited quietly only
  };

  static const Version& None();
  const Version& Current(const Record* record) const;
  // The version to change; stages the record, and with it a new revision.
  Version& Edit(Record* record);
  // The same for an absent record of which something goes: no new revision, and what stays keeps
  // its time.
  Version& EditQuietly(Record* record);
  Version& Stage(Record* record, bool goes_on);
  void SetOwner(Version& version, Incarnation* owner);
  void RemoveInstance(Version& version);
  IntentOutcome ApplyInSession(const Session& session, const HashedKey& key, Intent& intent);
  IntentOutcome ApplyDetached(const HashedKey& key, Intent& intent);
  // `record`, or, when it is null, a new one under `key`.
  Record* Made(Record* record, const HashedKey& key);
  absl::Status CheckLimits(const Version& current, const Incarnation* owner) const;
  // Whether one incarnation more may be remembered; counts it.
  absl::Status CheckRoom(const std::string& owner);
  // Whether a key may be kept of which there is no record; counts a fence without an instance.
  absl::Status CheckNewKey(const Incarnation& incarnation, bool registers);
  uint32_t RetentionOf(const Session& session) const;
  // Whether what the storage knows of when it was seen is too old.
  bool MustStoreSeen(const Incarnation& incarnation) const;
  ChangeLog::Entry ChangeOf(const Version& before, const Version& after) const;
  // Another name for an incarnation; the history keeps the one before.
  void Rename(Incarnation* incarnation, const std::string& client_name);
  // Whether a record's row in the storage says `after` too, without the row of its session.
  static bool GoesWithSession(const Version& before, const Version& after);
  void PutInstance(Version& version, Intent& intent, Incarnation* owner, int64_t session_row);
  void CountDetached(const Version& version, int64_t change) {
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

#endif  // FAILBACK_REGISTRY_STORE_STATE_H_
