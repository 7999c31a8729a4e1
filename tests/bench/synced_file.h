// The least that durability costs: a page written to a file, and synced.
//
// Thread safety: one call at a time.

#ifndef FAILBACK_TESTS_BENCH_SYNCED_FILE_H_
#define FAILBACK_TESTS_BENCH_SYNCED_FILE_H_

#include <cstdint>
#include <string>

namespace failback {

class SyncedFile {
 public:
  enum class Sync {
    kInPlace,  // fdatasync of a page whose block is there, as in a log that is used again
    kAppend,   // fdatasync of a file that grows
    kFsync,    // fsync of a file that grows, as of a log in most textbooks
  };

  SyncedFile(const std::string& path, Sync sync);
  ~SyncedFile();
  SyncedFile(const SyncedFile&) = delete;
  SyncedFile& operator=(const SyncedFile&) = delete;

  // False when the file cannot be written.
  bool Write();

 private:
  bool WritePage(int64_t number);

  const Sync sync_;
  const std::string page_;
  const int fd_;
  bool fine_;
  int64_t next_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_SYNCED_FILE_H_
