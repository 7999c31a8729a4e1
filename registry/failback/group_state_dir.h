// The state directory of an agent with one or several upstreams: a folder for each, and a file that
// names those that the agent had last.
//
//   state/lock                    held while the agent lives
//   state/upstreams               names, one a line
//   state/upstream-NAME/          an IntentJournal's
//
// Thread safety: none; used while an agent starts.

#ifndef FAILBACK_REGISTRY_FAILBACK_GROUP_STATE_DIR_H_
#define FAILBACK_REGISTRY_FAILBACK_GROUP_STATE_DIR_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/base/file_lock.h"
#include "registry/failback/intent_journal.h"

namespace failback {

class GroupStateDir {
 public:
  // Creates the folder if it is not there. FAILED_PRECONDITION names it when it cannot be used, or
  // is in use.
  static absl::StatusOr<GroupStateDir> Open(const std::string& dir);

  bool WasThere(const std::string& name) const;
  std::string Folder(const std::string& name) const;

  // What new upstreams begin with when none of the former ones is left: what the first of those
  // held, owed unregisters included. Nullopt when there were none; an error when none of them can
  // be read.
  absl::StatusOr<std::optional<std::vector<IntentJournal::Intent>>> TakeOver() const;

  // Notes the upstreams that the agent has now, and warns of those that it has no more.
  absl::Status Keep(const std::vector<std::string>& names) const;

  // To be held as long as the agent lives.
  std::unique_ptr<FileLock> TakeLock() { return std::move(lock_); }

 private:
  explicit GroupStateDir(std::string dir) : dir_(std::move(dir)) {}

  std::string dir_;
  std::unique_ptr<FileLock> lock_;
  std::vector<std::string> former_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_GROUP_STATE_DIR_H_
