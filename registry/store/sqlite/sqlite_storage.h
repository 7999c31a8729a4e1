// A store in one SQLite file.
//
// Rows have integer ids that only grow, so that new ones are appended; keys are not indexed here,
// the state has them in memory. The file is in WAL mode: a group of changes is one transaction, one
// append, and with durability `full` one sync. Each row carries a checksum, and the head the sum of
// all rows, so that a damaged one, and one of another commit, is noticed when the store is read.
//
// Beside `registry.db` there are SQLite's `registry.db-wal` and `-shm`; `registry.db.lock`, a lock
// that keeps a second process from the store and is released with the process; and
// `registry.db.mark`, which says how far the store has come (registry/store/sqlite/store_mark.h).
//
// The epoch is minted with the store, and again at a start that finds that commits may be missing:
//  * the last life did not end cleanly, its durability was below `full`, and the machine has been
//    started since (its boot id is another);
//  * the file is not the one that was written last, or not as it was then: it was put back from a
//    backup, or copied. A tool that restores a store removes its mark (StoreMark::PathOf), and the
//    next start mints.
//
// Files that are moved, removed or replaced while the store is open would take commits along that
// can never be found again: writes are refused until they are back.
//
// Thread safety: as Storage: one call at a time.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_STORAGE_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_STORAGE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/base/disk.h"
#include "registry/base/file_lock.h"
#include "registry/store/sqlite/durability.h"
#include "registry/store/sqlite/sqlite_checkpointer.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "registry/store/sqlite/sqlite_schema.h"
#include "registry/store/sqlite/storage.h"
#include "registry/store/sqlite/store_head.h"
#include "registry/store/sqlite/store_mark.h"
#include "registry/store/sqlite/store_row_writer.h"
#include "retry/executor.h"

namespace failback {

// The file that `path` leads to through symbolic links, which is where SQLite puts its log; `path`
// where there is none.
std::string StoreFileOf(const std::string& path, Disk* disk = Disk::Real());

// Keeps other processes from the store at `path`, whether it is there or not, by whatever name they
// call it. NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE and FAILED_PRECONDITION as of
// SqliteStorage::Open.
absl::StatusOr<FileLock> LockStore(const std::string& path, Disk* disk = Disk::Real());

// Of the machine's start; empty where the system has none.
std::string KernelBootId();

// Whether the machine has gone down, by what its start is called now, under a life of the store
// that did not sync each commit.
bool MayHaveLostCommits(const StoreHead& head, const std::string& boot_id);

class SqliteStorage final : public Storage {
 public:
  struct Options {
    std::string path;  // absolute; the folder exists
    Durability durability = Durability::kFull;
    int64_t checkpoint_pages = 4000;  // of 4 KiB, before the log is folded into the file
    // Names this start of the machine; empty: as the kernel says.
    std::string boot_id;
    // Where the log is folded into the file beside commits; outlives the storage. nullptr: a
    // thread of its own.
    Executor* executor = nullptr;
    Disk* disk = Disk::Real();  // outlives the storage
  };

  // Creates the file if there is none. Errors, each one line that names the path:
  // NOT_FOUND (no such folder), PERMISSION_DENIED (folder or file cannot be written),
  // FAILED_PRECONDITION (in use by another process, another program's file, newer version),
  // UNAVAILABLE (cannot be opened now), DATA_LOSS (damaged). A store that is there and cannot be
  // written now is opened: reads go on, and Write says why not.
  static absl::StatusOr<std::unique_ptr<SqliteStorage>> Open(Options options);

  // Ends the life cleanly: what was written is synced.
  ~SqliteStorage() override;

  StoreIdentity identity() const override { return head_.identity; }
  absl::Status Read(StoreReader* reader) override;
  absl::Status Write(const WriteSet& writes) override;
  bool blocks() const override { return true; }
  bool wants_checkpoint() const override { return checkpointer_->wants_finish(); }
  void Checkpoint() override { checkpointer_->Finish(); }
  std::vector<File> Files() const override;

 private:
  explicit SqliteStorage(Options options);
  absl::Status Connect();
  absl::Status OpenDatabase();
  absl::Status ReadStore(bool created);
  absl::Status MarkOpen();
  absl::Status FoldOpening();
  absl::StatusOr<std::unique_ptr<SqliteDatabase>> ConnectBeside() const;
  absl::Status CheckInPlace() const;

  // Of a file that cannot be looked at: none.
  FileIdentity Identity(const std::string& path) const;

  Options options_;
  std::optional<FileLock> lock_;
  std::unique_ptr<SqliteDatabase> db_;
  std::optional<StoreMark> mark_;
  StoreHead head_;            // as this life has it
  bool minted_ = false;       // this life has a new epoch
  bool marked_ = false;       // the file says that it is open
  bool mark_failed_ = false;  // the last commit could not be marked
  FileIdentity store_file_;   // as they were when it was marked
  FileIdentity log_file_;
  bool alone_ = false;                                // no other connection can use the file
  std::unique_ptr<StoreRowWriter> rows_;              // goes before db_
  std::unique_ptr<SqliteCheckpointer> checkpointer_;  // likewise
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_STORAGE_H_
