// What the registry knows, as a pure state machine: no threads, no clock, no disk.
//
// It holds one record per key (the instance, the fence of the newest intent accepted, or both),
// sessions, and incarnations with their ranks, and decides intents by the fencing table of
// docs/protocol.md. Every change goes through a Transaction, which decides against the state as it
// is plus what the transaction itself has decided so far, and touches nothing that a reader sees
// until Commit (registry/store/transaction.h). In between its rows are made durable; when that
// fails, it is dropped and the state is as it was.
//
//   State::Transaction transaction(&state, now);
//   IntentOutcome outcome = transaction.Apply(session, std::move(intent));
//   if (storage.Write(transaction.MakeWrites()).ok()) {
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
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "registry/model/blob.h"
#include "registry/model/hashed_key.h"
#include "registry/model/list_scope.h"
#include "registry/store/change_log.h"
#include "registry/store/records.h"
#include "registry/store/sqlite/storage.h"

namespace failback {

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
    // An operator's mark on an instance that has gone with its session is kept this long, and not
    // shorter than the fence. The fence does not wait for it.
    int64_t offline_memory_ms = int64_t{24} * 3600 * 1000;
  };

  // An incarnation without session and records is remembered for kIncarnationMemory, and after a
  // restart up to this much longer: the end of a session need not be stored with its incarnation
  // when that was stored so recently.
  static constexpr int64_t kSeenSlackMs = int64_t{3600} * 1000;

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

  struct NamedChange {
    ChangeLog::Entry entry;
    std::string client;  // as it was called then; empty: none
  };
  // What is remembered of the instances whose bytes begin so, the newest first.
  std::vector<NamedChange> ChangesOf(std::string_view begins) const;
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
  class Checker;

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
  // Takes an instance out of its owner's lists, and puts one into them.
  static void Disown(Record* record, Incarnation* owner);
  static void Own(Record* record, Incarnation* owner);
  // `goes_on`: what stays of an absent record keeps its time.
  void SetVersion(Record* record, RecordVersion version, int64_t monotonic_ms,
                  bool goes_on = false);
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

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_STATE_H_
