// Notices that files have changed: rotated certificates, an edited policy, a ConfigMap whose
// symlink was swapped.
//
// It looks when it is asked, and has no thread: a periodic task on the wheel asks, or the code that
// is about to use the files. A file has changed when what stat returns for it has (device, inode,
// size, times), through symlinks. A file that was written within the last two seconds is taken as
// changed as well: a second write may have left the same times.
//
//   FileChanges changes({"tls.crt", "tls.key"});
//   …
//   if (changes.Check()) Reload();      // reads after: what changes meanwhile is seen next time
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_SECURITY_FILE_CHANGES_H_
#define FAILBACK_REGISTRY_SECURITY_FILE_CHANGES_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace failback {

class FileChanges {
 public:
  explicit FileChanges(std::vector<std::string> paths);

  // Whether any file may have changed, come or gone since the last call; true at the first.
  bool Check();

 private:
  // Device, inode, size, times of change of content and inode; zeroes: not there.
  using Stamp = std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t>;

  const std::vector<std::string> paths_;
  std::vector<Stamp> seen_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_FILE_CHANGES_H_
