// The files below the store and the intent journal.
//
// SQLite reaches files through a VFS of its own (https://sqlite.org/vfs.html). What else is kept
// beside its files, a lock and a mark, goes through a Disk, which also names the VFS: so all that
// must survive a crash can be put on one disk of a test, which loses power, tears pages and returns
// errors as real ones do.
//
//   std::unique_ptr<DiskFile> file;
//   if (const int error = disk->OpenOrMake(path, 0644, &file, &made)) return Error(error);
//   if (const int error = file->Write(bytes, 0)) …
//
// Functions that return an int return 0 or an errno.
//
// Thread safety: a Disk from any thread; a DiskFile one call at a time.

#ifndef FAILBACK_REGISTRY_BASE_DISK_H_
#define FAILBACK_REGISTRY_BASE_DISK_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace failback {

// Whether what has failed with `error` may work later: the process or the machine is short of
// something.
bool MayPass(int error);

struct FileInfo {
  enum class Kind { kFile, kFolder, kOther };
  Kind kind = Kind::kOther;
  int64_t bytes = 0;
  uint64_t names = 1;  // that lead to it
};

// Which file a path leads to. All 0: none.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t born = 0;  // nanoseconds since the Unix epoch; 0: the file system does not say

  bool operator==(const FileIdentity& other) const {
    return device == other.device && inode == other.inode && born == other.born;
  }
};

class DiskFile {
 public:
  // Closes it. A lock goes with it.
  virtual ~DiskFile() = default;

  // Reads up to `size` bytes from `at`; fewer, in `read`, only at the end of the file.
  virtual int Read(char* to, size_t size, int64_t at, size_t* read) = 0;
  // All of `bytes`, or an error, after which some of it may be there.
  virtual int Write(std::string_view bytes, int64_t at) = 0;
  virtual int Truncate(int64_t size) = 0;
  // Returns when what was written is on the disk.
  virtual int Sync() = 0;
  // Locks it against every other DiskFile; EWOULDBLOCK when one of those has it.
  virtual int Lock() = 0;
  virtual int Look(FileInfo* info) = 0;
};

class Disk {
 public:
  virtual ~Disk() = default;

  // The machine's; never destroyed.
  static Disk* Real();

  // For sqlite3_open_v2; nullptr: SQLite's default.
  virtual const char* sqlite_vfs() const = 0;

  // Opens the file at `path`, to be read and written; a file that is not there is made, with
  // `mode`. No symbolic link is followed: ELOOP.
  virtual int OpenOrMake(const std::string& path, mode_t mode, std::unique_ptr<DiskFile>* file,
                         bool* made) = 0;
  // The path that `path` leads to through symbolic links; `path` where there is nothing.
  virtual std::string Resolve(const std::string& path) = 0;
  virtual int Look(const std::string& path, FileInfo* info) = 0;
  virtual int Identify(const std::string& path, FileIdentity* identity) = 0;
  virtual int MakeFolder(const std::string& path, mode_t mode) = 0;
  virtual int Rename(const std::string& from, const std::string& to) = 0;
  // Returns when the names in the folder of `path` are on the disk.
  virtual int SyncFolderOf(const std::string& path) = 0;
  // What may still be written to the disk of `path`; -1: it cannot be said.
  virtual int64_t FreeBytes(const std::string& path) = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_DISK_H_
