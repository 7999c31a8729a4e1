// The tables of a store's file, and how rows go in and out of them.
//
// Thread safety: as SqliteDatabase.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_SCHEMA_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_SCHEMA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "registry/store/sqlite/storage.h"
#include "registry/store/sqlite/store_head.h"

namespace failback {

// The version of the tables that this program writes, in PRAGMA user_version. Older files are
// migrated when they are opened, newer ones refused.
inline constexpr int kStoreSchemaVersion = 7;
// PRAGMA application_id: "FBRS".
inline constexpr int kStoreApplicationId = 0x46425253;

// Begins a new epoch in `head`. Ranks are left out: commits that are missing gave some away; the
// incarnation that has one may claim it again, and no other incarnation may get it.
void BeginNewEpoch(StoreHead* head);

// The version of the tables: 0 for an empty file. FAILED_PRECONDITION for another program's file or
// a newer version's, DATA_LOSS for one that is no database.
absl::StatusOr<int> StoreSchemaVersion(SqliteDatabase& db);

// Brings the tables from version `from` to kStoreSchemaVersion. A new file (0) gets `head` too.
absl::Status MigrateStore(SqliteDatabase& db, int from, const StoreHead& head);

absl::StatusOr<StoreHead> ReadStoreHead(SqliteDatabase& db);

// Replaces the head, in the caller's transaction.
absl::Status WriteStoreHead(SqliteDatabase& db, const StoreHead& head);

// Sets the revisions of all records to 1, the first of an epoch, and with them the sum in `head`;
// in the caller's transaction. DATA_LOSS when the rows have another sum than `head` says.
absl::Status RestartRevisions(SqliteDatabase& db, StoreHead* head);

// Incarnations, sessions, records. DATA_LOSS when a row cannot be trusted, all together have another
// sum than `head` says, or the reader says so. With `restarted` revisions are returned as after
// RestartRevisions.
absl::Status ReadStoreRows(SqliteDatabase& db, const StoreHead& head, bool restarted,
                           StoreReader* reader);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_SCHEMA_H_
