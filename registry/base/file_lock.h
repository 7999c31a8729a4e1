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

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "registry/base/disk.h"

namespace failback {

class FileLock {
 public:
  // Creates the file if needed. FAILED_PRECONDITION when another process (or another FileLock of
  // this one) holds the lock, INVALID_ARGUMENT when the file cannot be created, or is a link to
  // another, UNAVAILABLE when it cannot be now (MayPass); the message names the path.
  static absl::StatusOr<FileLock> Acquire(const std::string& path, Disk* disk = Disk::Real());

 private:
  explicit FileLock(std::unique_ptr<DiskFile> file) : file_(std::move(file)) {}

  std::unique_ptr<DiskFile> file_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_FILE_LOCK_H_
