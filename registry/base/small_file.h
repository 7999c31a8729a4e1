// Small files that a program keeps in folders where others may write too.
//
//   absl::Status status = ReplaceFile(dir + "/upstreams", text, 0600);
//
// Thread safety: all functions, for different files.

#ifndef FAILBACK_REGISTRY_BASE_SMALL_FILE_H_
#define FAILBACK_REGISTRY_BASE_SMALL_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace failback {

// Makes `text` what the file at `path` holds, on the disk and in one step: a reader sees the old
// or the new. It is written to a new file beside it and renamed; no symbolic link is followed in
// either place. FAILED_PRECONDITION names the path and says why not, and the old file stays.
absl::Status ReplaceFile(const std::string& path, const std::string& text, mode_t mode);

// What the file at `path` holds, 1 MiB at most. NOT_FOUND when there is none; any other reason why
// it cannot be read is FAILED_PRECONDITION: it is a pipe, or too large. The error does not name the
// path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// What an operator types to make `folder` one that this program may use, as
// "sudo install -d -o registry /var/lib/failback".
std::string HowToMakeFolder(const std::string& folder);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_SMALL_FILE_H_
