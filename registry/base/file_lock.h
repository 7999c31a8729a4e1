// A lock file: keeps two processes from sharing a socket or a folder.
//
// The lock is the kernel's (flock), so it goes with the process that holds it, however that ends.
// The file stays; it holds the process id of the last owner, for messages.
//
//   absl::StatusOr<FileLock> lock = FileLock::Acquire("/run/failback/agent.sock.lock");
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_BASE_FILE_LOCK_H_
#define FAILBACK_REGISTRY_BASE_FILE_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace failback {

class FileLock {
 public:
  // Creates the file if needed. FAILED_PRECONDITION when another process (or another FileLock of
  // this one) holds the lock, INVALID_ARGUMENT when the file cannot be created, or is a link to
  // another; the message names the path.
  static absl::StatusOr<FileLock> Acquire(const std::string& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_FILE_LOCK_H_
