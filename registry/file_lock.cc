#include "registry/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace failback {

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0660);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot create ", path, ": ", std::generic_category().message(errno)));
  }
  FileLock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char text[16] = {};
    int64_t pid = 0;
    const bool known = pread(fd, text, sizeof(text) - 1, 0) > 0 && absl::SimpleAtoi(text, &pid);
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is locked by ",
                     known ? absl::StrCat("process ", pid) : std::string("another process")));
  }
  // For messages only: the lock holds without it, on a full disk too.
  const std::string pid = absl::StrCat(getpid(), "\n");
  bool written = ftruncate(fd, 0) == 0 && pwrite(fd, pid.data(), pid.size(), 0) > 0;
  if (!written) written = ftruncate(fd, 0) == 0;  // rather no owner than half of one
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace failback
