#include "registry/base/file_lock.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace failback {
namespace {

absl::Status Error(const std::string& path, int error) {
  const std::string message =
      absl::StrCat("cannot create ", path, ": ",
                   error == ELOOP ? "is a symbolic link" : std::generic_category().message(error));
  return MayPass(error) ? absl::UnavailableError(message) : absl::InvalidArgumentError(message);
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& path, Disk* disk) {
  std::unique_ptr<DiskFile> file;
  bool made = false;
  if (const int error = disk->OpenOrMake(path, 0660, &file, &made)) return Error(path, error);
  FileInfo info;
  if (const int error = file->Look(&info)) return Error(path, error);
  // Of a file that has another name too the content may belong to another program.
  if (info.kind != FileInfo::Kind::kFile || info.names > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot create ", path, ": something else is there"));
  }
  if (const int error = file->Lock(); error != 0 && error != EWOULDBLOCK) {
    return Error(path, error);
  } else if (error != 0) {
    char text[16] = {};
    size_t size = 0;
    int64_t pid = 0;
    const bool known =
        file->Read(text, sizeof(text) - 1, 0, &size) == 0 && absl::SimpleAtoi(text, &pid);
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is locked by ",
                     known ? absl::StrCat("process ", pid) : std::string("another process")));
  }
  // For messages only: the lock holds without it, on a full disk too.
  if (file->Truncate(0) != 0 || file->Write(absl::StrCat(getpid(), "\n"), 0) != 0) {
    file->Truncate(0);  // rather no owner than half of one
  }
  return FileLock(std::move(file));
}

}  // namespace failback
