#include "registry/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace failback {

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0660);
  if (fd < 0) {
    const std::string why =
        errno == ELOOP ? "is a symbolic link" : std::generic_category().message(errno);
    return absl::InvalidArgumentError(absl::StrCat("cannot create ", path, ": ", why));
  }
  FileLock lock(fd);
  struct stat info;
  // Of a file that has another name too the content may belong to another program.
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot create ", path, ": something else is there"));
  }
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
