// One connection to an SQLite file, with errors as statuses.
//
// Every error names the file, says what SQLite says, and has one of three codes, for the store and
// for the intent journal: DATA_LOSS for a damaged file (what SQLite calls corrupt or no database,
// and nothing else), PERMISSION_DENIED for one that may not be used, UNAVAILABLE for what may pass
// (disk full, read-only, locked, out of descriptors, an I/O error).
//
// Thread safety: one call at a time.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_DATABASE_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_DATABASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/base/disk.h"
#include "registry/store/sqlite/sqlite_log.h"

struct sqlite3;
struct sqlite3_stmt;

namespace failback {

// A prepared statement. Bound bytes must outlive the next Step. It goes before its database does.
class SqliteStatement {
 public:
  explicit SqliteStatement(sqlite3_stmt* statement) : statement_(statement) {}
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  // Parameters count from 1.
  void Bind(int index, int64_t value);
  void Bind(int index, uint64_t value) { Bind(index, static_cast<int64_t>(value)); }
  void BindText(int index, const std::string& text);
  void BindBlob(int index, std::string_view bytes);
  void BindNull(int index);

  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step();
  // Ends the reading of rows; the values that were bound stay.
  void Reset();
  // Step and Reset of a statement without rows: SQLITE_OK or an error.
  int Run();

  // Columns count from 0.
  bool IsNull(int column) const;
  int64_t Int(int column) const;
  uint64_t Uint(int column) const { return static_cast<uint64_t>(Int(column)); }
  // Valid until the next Step.
  std::string_view Bytes(int column) const;

 private:
  sqlite3_stmt* const statement_;
};

// What SQLite says, and quotes of a damaged file, may be anything: control characters become
// spaces.
std::string OnOneLine(std::string text);

class SqliteDatabase {
 public:
  enum class Mode {
    kCreate,     // read and write; made if it is not there
    kReadWrite,  // must be there
    kReadOnly,   // likewise
  };

  // `kind` says in errors what the file is. `disk` outlives the connection.
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(const std::string& path, Mode mode,
                                                              const char* kind = "store",
                                                              Disk* disk = Disk::Real());
  ~SqliteDatabase();
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  const std::string& path() const { return path_; }
  sqlite3* handle() const { return db_; }

  absl::Status Execute(const std::string& sql);
  absl::StatusOr<std::unique_ptr<SqliteStatement>> Prepare(const char* sql);
  // The first column of the only row.
  absl::StatusOr<int64_t> QueryInt(const char* sql);

  // Reads the structure of the whole file with "quick_check" or "integrity_check". DATA_LOSS says
  // what is wrong with it; a page that could not be read now is no damage.
  absl::Status CheckStructure(const char* check);

  // The log of this connection, which is SQLite's own business until it is attached.
  void AttachLog(bool keep_room) { log_.Attach(db_, keep_room, disk_); }
  SqliteLog& log() { return log_; }

  // Runs `work`, which returns a status, in a transaction that writes; on an error nothing stays.
  template <typename Work>
  absl::Status InTransaction(Work work) {
    if (auto status = Begin(); !status.ok()) return status;
    absl::Status status = work();
    if (status.ok()) status = Commit();
    if (!status.ok()) RollBack();
    return status;
  }

  // Returns when the database file, without its log, is on the disk as it is now, whatever
  // `synchronous` says.
  absl::Status Sync();

  // What went wrong when a call returned `code`.
  absl::Status Error(int code) const;
  // DATA_LOSS: the file is not what it should be. `what` may be SQLite's words or the file's.
  absl::Status Damaged(const std::string& what) const;
  // SQLite's extended code of the last error.
  int last_error() const;

 private:
  SqliteDatabase(std::string path, sqlite3* db, const char* kind, Disk* disk);
  absl::Status Begin();
  absl::Status Commit();
  // Runs `sql`, prepared at the first use and kept in `statement`.
  absl::Status RunKept(const char* sql, std::unique_ptr<SqliteStatement>* statement);
  void RollBack();

  const std::string path_;
  sqlite3* const db_;
  const char* const kind_;
  Disk* const disk_;
  SqliteLog log_;
  std::unique_ptr<SqliteStatement> begin_;
  std::unique_ptr<SqliteStatement> commit_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_DATABASE_H_
