// The last known sets in the file of an intent journal (registry/failback/journal_file.h). They are
// a cache: what is damaged is not there, and what no subscriber wanted for a week is removed.
//
// A row has a checksum of its event, as version 0.1.0 writes and reads it, and one of its selector,
// which 0.1.0 leaves out: so both versions read what the other has written.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_FAILBACK_JOURNAL_SNAPSHOTS_H_
#define FAILBACK_REGISTRY_FAILBACK_JOURNAL_SNAPSHOTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/store/sqlite/sqlite_database.h"

namespace failback {

struct JournalSnapshot {
  // Canonical.
  std::string selector;
  // Serialized SubscribeResponse with the whole set; empty where it is written: there is none.
  std::string event;
};

class JournalSnapshots {
 public:
  // The table, for a new file.
  static const char kCreate[];

  // `db` outlives it.
  explicit JournalSnapshots(SqliteDatabase* db) : db_(db) {}

  // Those that are whole, oldest first.
  absl::StatusOr<std::vector<JournalSnapshot>> Read();
  absl::Status RemoveOld();

  // Once before Write, in no transaction: a table that 0.1.0 has made gets its new column.
  absl::Status PrepareWrites();
  // Within the caller's transaction.
  absl::Status Write(const JournalSnapshot& snapshot);

 private:
  absl::StatusOr<bool> HasSelectorChecksums();
  absl::Status Run(SqliteStatement* statement);

  SqliteDatabase* const db_;
  std::unique_ptr<SqliteStatement> put_;
  std::unique_ptr<SqliteStatement> drop_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_JOURNAL_SNAPSHOTS_H_
