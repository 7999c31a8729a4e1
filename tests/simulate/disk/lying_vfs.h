// A LyingDisk as SQLite sees it (https://sqlite.org/vfs.html). Internal to LyingDisk.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_LYING_VFS_H_
#define FAILBACK_TESTS_SIMULATE_DISK_LYING_VFS_H_

#include <sqlite3.h>

#include <string>

#include "tests/simulate/disk/lying_disk.h"

namespace failback {

class LyingVfs {
 public:
  // Registered with SQLite under disk->sqlite_vfs() until it ends.
  explicit LyingVfs(LyingDisk* disk);
  ~LyingVfs();

  struct File;  // an open file

 private:
  friend class LyingDisk;
  using NodePtr = LyingDisk::NodePtr;

  static LyingDisk* DiskOf(sqlite3_vfs* vfs) { return static_cast<LyingDisk*>(vfs->pAppData); }
  static File* Of(sqlite3_file* file);
  // SQLite's code for `error`, which `what` has met; it is kept for xGetLastError.
  static int Code(LyingDisk* disk, int error, int what);

  static int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out);
  static int Delete(sqlite3_vfs* vfs, const char* name, int sync_folder);
  static int Access(sqlite3_vfs* vfs, const char* name, int flags, int* out);
  static int FullPathname(sqlite3_vfs* vfs, const char* name, int size, char* out);
  static int Randomness(sqlite3_vfs* vfs, int size, char* out);
  static int Sleep(sqlite3_vfs* vfs, int micros);
  static int CurrentTimeInt64(sqlite3_vfs* vfs, sqlite3_int64* out);
  static int CurrentTime(sqlite3_vfs* vfs, double* out);
  static int LastError(sqlite3_vfs* vfs, int size, char* out);

  static int Close(sqlite3_file* file);
  static int Read(sqlite3_file* file, void* to, int size, sqlite3_int64 at);
  static int Write(sqlite3_file* file, const void* from, int size, sqlite3_int64 at);
  static int Truncate(sqlite3_file* file, sqlite3_int64 size);
  static int Sync(sqlite3_file* file, int flags);
  static int FileSize(sqlite3_file* file, sqlite3_int64* size);
  static int Lock(sqlite3_file* file, int level);
  static int Unlock(sqlite3_file* file, int level);
  static int CheckReserved(sqlite3_file* file, int* out);
  static int FileControl(sqlite3_file* file, int operation, void* argument);
  static int SectorSize(sqlite3_file* file);
  static int Characteristics(sqlite3_file* file);
  static int SharedMap(sqlite3_file* file, int page, int size, int extend, void volatile** out);
  static int SharedLock(sqlite3_file* file, int first, int count, int flags);
  static void SharedBarrier(sqlite3_file* file);
  static int SharedUnmap(sqlite3_file* file, int remove);

  static const sqlite3_io_methods kMethods;

  LyingDisk* const disk_;
  sqlite3_vfs vfs_ = {};
  int last_error_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_LYING_VFS_H_
