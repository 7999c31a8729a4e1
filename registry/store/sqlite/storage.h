// What StoreRegistry needs from a disk: to write groups of rows at once, and to read all back at
// start.
//
// The state lives in memory; storage is its log and its memory of the last life. Rows are whole:
// the newest row of an id replaces the earlier one, so a storage needs no logic of its own.
//
// Thread safety: one call at a time; the caller sees to it.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_STORAGE_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/model/blob.h"

namespace failback {

// What the registry holds for one key. An instance with an owner that is not persistent is there as
// long as the row of its session is: with that row it goes, and its fence and its mark are left, so
// that the end of a session need not write its records.
struct RecordRow {
  int64_t id = 0;           // from 1, never used twice
  std::string_view key;     // canonical
  Blob instance;            // null: absent, only the fence or the mark is left
  Blob offline;             // a serialized OfflineMark; null: none
  uint64_t fence_rank = 0;  // 0: no fence
  uint64_t fence_generation = 0;
  uint64_t fence_digest = 0;
  bool fence_registers = false;
  uint64_t owner_rank = 0;  // 0: detached
  int64_t session = 0;      // id of the SessionRow it lives in or lived in last; 0: detached
  uint64_t create_revision = 0;
  uint64_t modify_revision = 0;
  int64_t create_ms = 0;  // since the Unix epoch
  int64_t modify_ms = 0;
  // How long the fence stays after the instance has gone. 0.1.0 wrote how long the mark stays
  // instead, a day, when it wrote a record with a mark.
  uint32_t retention_ms = 0;
  bool persistent = false;
};

struct SessionRow {
  int64_t id = 0;
  std::string session_id;
  uint64_t rank = 0;
  int64_t ttl_ms = 0;
  bool ends_with_stream = false;
};

struct IncarnationRow {
  uint64_t rank = 0;
  std::string name;
  std::string client_name;
  int64_t last_seen_ms = 0;
  std::string owner;  // who opened it; empty: callers were not distinguished
};

// The store as a whole.
struct StoreIdentity {
  std::string store_id;
  uint64_t epoch = 0;
  uint64_t revision = 0;
  uint64_t next_rank = 1;
};

// One group of changes: all of it is written, or nothing.
struct WriteSet {
  uint64_t revision = 0;
  uint64_t next_rank = 0;
  std::vector<IncarnationRow> incarnations;
  std::vector<uint64_t> removed_incarnations;  // ranks
  std::vector<SessionRow> sessions;
  std::vector<int64_t> removed_sessions;
  std::vector<RecordRow> records;
  std::vector<int64_t> removed_records;

  bool empty() const {
    return incarnations.empty() && removed_incarnations.empty() && sessions.empty() &&
           removed_sessions.empty() && records.empty() && removed_records.empty();
  }
};

// Takes what a store holds. Incarnations come before sessions, sessions before records. An error
// ends the reading and says what is wrong with the row.
class StoreReader {
 public:
  virtual ~StoreReader() = default;
  virtual absl::Status OnIncarnation(IncarnationRow row) = 0;
  virtual absl::Status OnSession(SessionRow row) = 0;
  virtual absl::Status OnRecord(RecordRow row) = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;

  // The store's identity as this life has it: a new epoch when commits may have been lost.
  virtual StoreIdentity identity() const = 0;

  // Called once, before the first Write. DATA_LOSS when the store cannot be trusted.
  virtual absl::Status Read(StoreReader* reader) = 0;

  // Returns when the rows are as durable as configured. After an error nothing of `writes` is in
  // the store, and the same rows may be written again. Nor will anything be after a restart, unless
  // it was the sync that failed and the program or the machine ends before the next Write succeeds:
  // then all of `writes` may be there, as the disk may have it.
  virtual absl::Status Write(const WriteSet& writes) = 0;

  // Whether Write waits for a device, so that commits are worth grouping on a thread of their own.
  virtual bool blocks() const = 0;

  // Whether it is time to move what Write has appended to its place. Checkpoint does so, between two
  // calls of Write and when those who waited for the first have been answered; what it cannot move
  // it is asked for again after a later Write.
  virtual bool wants_checkpoint() const { return false; }
  virtual void Checkpoint() {}

  // Whether Write does nothing, so that rows need not be made.
  virtual bool forgets() const { return false; }

  // How large its files are now, by what they are for. From any thread, also during another call.
  struct File {
    std::string name;  // `store`, `log`
    int64_t bytes = 0;
  };
  virtual std::vector<File> Files() const { return {}; }
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_STORAGE_H_
