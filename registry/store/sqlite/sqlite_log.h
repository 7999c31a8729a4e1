// SQLite's write-ahead log (the -wal file) of one connection: when it is folded into the database,
// and room ahead of its end.
//
// Checkpoints. SQLite makes an automatic one within the commit that finds the log long, and the
// caller that waits for that commit waits for all of it. Here it is the caller's to make
// (registry/store/sqlite/sqlite_checkpointer.h).
//
// Room, where every commit is synced. A sync of a file that has grown writes what the file system
// knows of the file as well, its size and its blocks: on ext4 a commit took 550 us so, and 115 us
// in a log whose blocks had been written before, when a bare fdatasync took 110. So the file is
// kept longer than the log, by zeros that are written a megabyte at a time: about one small commit
// in a hundred pays for the growth of all. Zeros after the last frame are to SQLite what the frames
// of an earlier turn of the log are: a frame counts only if its salt and its running checksum fit
// (https://sqlite.org/fileformat2.html#the_write_ahead_log).
//
// A disk that is nearly full keeps what room it has for what is no zeros.
//
//   SqliteLog log;                             // goes after the connection does
//   log.Attach(db, /*keep_room=*/true);
//   ... BEGIN IMMEDIATE; INSERT ...; log.Reserve(); COMMIT;
//   if (log.pages() >= 4000) log.Checkpoint();
//
// Thread safety: that of the connection.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_LOG_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_LOG_H_

#include <cstdint>

#include "registry/base/disk.h"

struct sqlite3;

namespace failback {

// Folds what no reader needs of the log of `db` into the database: how many of its pages are there
// now, -1 if it cannot be said. What is left stays in the log, as durable as it was.
int64_t FoldLog(sqlite3* db);

class SqliteLog {
 public:
  SqliteLog() = default;
  SqliteLog(const SqliteLog&) = delete;
  SqliteLog& operator=(const SqliteLog&) = delete;

  // Takes the log over from SQLite, whose automatic checkpoints end with it. Does nothing, and
  // nothing else here does then, unless `db` is in WAL mode. `disk` is the one of its file.
  void Attach(sqlite3* db, bool keep_room, Disk* disk = Disk::Real());

  // Makes room for the next commits, if it is to be kept and there is little. To be called within a
  // transaction that writes, so that no other writer does. A disk without room is no error here:
  // the commit finds that out.
  void Reserve();

  // Pages in the log after the last commit.
  int64_t pages() const { return pages_; }

  // FoldLog. If that was all, the log starts over with the next commit.
  int64_t Checkpoint() { return db_ == nullptr ? -1 : FoldLog(db_); }

 private:
  static int OnCommit(void* self, sqlite3* db, const char* schema, int pages);

  sqlite3* db_ = nullptr;
  Disk* disk_ = nullptr;
  int64_t page_size_ = 0;  // 0: no room to keep
  int64_t pages_ = 0;
  int64_t size_ = 0;  // of the file, at least
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_SQLITE_LOG_H_
