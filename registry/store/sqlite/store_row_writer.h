// Writes groups of rows to the tables of a store's file, and keeps the sum of all rows in its head.
//
// Thread safety: as SqliteDatabase.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_STORE_ROW_WRITER_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_STORE_ROW_WRITER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "registry/store/sqlite/storage.h"
#include "registry/store/sqlite/store_head.h"

namespace failback {

// Of tables of the present version, except that rows and head may be without their sums.
class StoreRowWriter {
 public:
  static absl::StatusOr<std::unique_ptr<StoreRowWriter>> Create(SqliteDatabase* db);

  // One group more, in the caller's transaction; `head` is the store's with this group in it, and
  // gets the sum of the rows as they are then.
  absl::Status Write(const WriteSet& writes, StoreHead* head);

 private:
  // The rows of one kind, by ids that only grow.
  struct Table {
    std::unique_ptr<SqliteStatement> put;
    std::unique_ptr<SqliteStatement> remove;     // from one id to another
    std::unique_ptr<SqliteStatement> checksums;  // likewise: what is there
    uint64_t (*part)(const SqliteStatement& checksums) = nullptr;
    int64_t last = 0;  // no row has a higher id
  };

  explicit StoreRowWriter(SqliteDatabase* db) : db_(db) {}
  absl::Status Prepare(const char* name, const char* id, const char* put, const char* checksum,
                       Table* table);
  // Each returns SQLite's code, and keeps sum_.
  int Put(int64_t id, uint64_t part, Table* table);
  int PutRecord(const RecordRow& row);
  int PutSession(const SessionRow& row);
  int PutIncarnation(const IncarnationRow& row);
  int Forget(int64_t first, int64_t last, Table* table);
  // Sorted ids; those that follow each other go with one statement.
  template <typename Id>
  int Remove(const std::vector<Id>& ids, Table* table);
  int WriteRows(const WriteSet& writes);

  SqliteDatabase* const db_;
  Table records_;
  Table sessions_;
  Table incarnations_;
  std::unique_ptr<SqliteStatement> put_position_;
  uint64_t sum_ = 0;  // in Write
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_STORE_ROW_WRITER_H_
