#include "registry/base/small_file.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace failback {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status CannotBeRead() {
  const std::string message = absl::StrCat("cannot be read: ", std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
}

absl::StatusOr<std::string> ReadDescriptor(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return CannotBeRead();
  if (S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    return CannotBeRead();
  }
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError("is not a file");
  std::string text;
  char buffer[4096];
  ssize_t count;
  while ((count = read(fd, buffer, sizeof(buffer))) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return CannotBeRead();
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kMaxFileBytes) {
      return absl::FailedPreconditionError(
          absl::StrCat("is larger than ", kMaxFileBytes, " bytes, the most that is allowed"));
    }
  }
  return text;
}

// Writes all of `text` to a new file and to the disk.
bool WriteNewFile(const std::string& path, const std::string& text, mode_t mode) {
  unlink(path.c_str());  // what an earlier process of this id left
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0) return false;
  size_t written = 0;
  bool ok = fchmod(fd, mode) == 0;
  while (ok && written < text.size()) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    ok = count >= 0;
    if (ok) written += static_cast<size_t>(count);
  }
  ok = ok && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  return ok;
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, const std::string& text, mode_t mode) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  if (WriteNewFile(temporary, text, mode) && std::rename(temporary.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  const std::string message = absl::StrCat(path, ": ", std::strerror(errno));
  unlink(temporary.c_str());
  return absl::FailedPreconditionError(message);
}

std::string HowToMakeFolder(const std::string& folder) {
  const passwd* const user = getpwuid(geteuid());
  return absl::StrCat("sudo install -d -o ",
                      user != nullptr ? std::string(user->pw_name) : absl::StrCat(geteuid()), " ",
                      folder);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  // Of a pipe that no one writes to, open would wait without O_NONBLOCK, and reads without end.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return CannotBeRead();
  absl::StatusOr<std::string> text = ReadDescriptor(fd);
  close(fd);
  return text;
}

}  // namespace failback
