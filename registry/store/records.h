// What a State holds: sessions, incarnations with their ranks, and a record per key.
//
// Thread safety: as State's, whose parts they are.

#ifndef FAILBACK_REGISTRY_STORE_RECORDS_H_
#define FAILBACK_REGISTRY_STORE_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/btree_set.h"
#include "registry/model/blob.h"
#include "registry/model/fencing.h"
#include "registry/model/hashed_key.h"
#include "registry/store/lease_end.h"

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
  int64_t stored_ms = 0;  // last_seen_ms as the storage has it, at most State::kSeenSlackMs ago
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
struct RecordVersion {
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
  RecordVersion WithoutInstance() const;
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

  RecordVersion version;
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

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_RECORDS_H_
