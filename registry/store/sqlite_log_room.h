// Room ahead of the end of SQLite's log (the -wal file), so that a commit writes into blocks that
// are there already.
//
// A sync of a file that has grown waits for the file system's own journal as well: on ext4 a commit
// with synchronous=FULL took 550 us, and 115 us in a log whose blocks had been written before, when
// a bare fdatasync took 110. So the log is kept a few commits longer than it is, by zeros written a
// megabyte at a time: about one small commit in a hundred pays for the growth of all.
//
// Zeros after the last frame are to SQLite what the frames of an earlier turn of the log are: a
// frame counts only if its salt and its running checksum fit
// (https://sqlite.org/fileformat2.html#the_write_ahead_log).
//
//   SqliteLogRoom room;                        // goes after the connection does
//   room.Attach(db, /*checkpoint_pages=*/4000);
//   ... BEGIN IMMEDIATE; INSERT ...; room.Reserve(); COMMIT;
//
// Thread safety: that of the connection.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_LOG_ROOM_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_LOG_ROOM_H_

#include <cstdint>

struct sqlite3;

namespace failback {

class SqliteLogRoom {
 public:
  SqliteLogRoom() = default;
  SqliteLogRoom(const SqliteLogRoom&) = delete;
  SqliteLogRoom& operator=(const SqliteLogRoom&) = delete;

  // Does nothing unless `db` is in WAL mode. A connection has one hook for commits, which SQLite's
  // automatic checkpoints use as well: from here on they are made here, when the log has
  // `checkpoint_pages`.
  void Attach(sqlite3* db, int checkpoint_pages);

  // Makes room for the next commits, if there is little. To be called within a transaction that
  // writes, so that nobody else does; does nothing before Attach. A disk without room is no error
  // here: the commit finds that out.
  void Reserve();

 private:
  static int OnCommit(void* self, sqlite3* db, const char* schema, int pages);

  sqlite3* db_ = nullptr;
  int checkpoint_pages_ = 0;
  int64_t page_size_ = 0;
  int64_t pages_ = 0;  // in the log after the last commit
  int64_t size_ = 0;   // of the file, at least
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_LOG_ROOM_H_
