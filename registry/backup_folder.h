// A folder of backups, each named after the moment at which it was made, so that a timer needs
// neither a shell nor a date to make one a day and to keep the newest.
//
// Only files of that name are looked at: whatever else is in the folder stays.

#ifndef FAILBACK_REGISTRY_BACKUP_FOLDER_H_
#define FAILBACK_REGISTRY_BACKUP_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace failback {

// FOLDER/registry-20261123T170739Z.db: names sort by time.
std::string BackupPath(const std::string& folder, absl::Time moment);

// The newest backup of the folder. NOT_FOUND when it has none, or cannot be read.
absl::StatusOr<std::string> NewestBackup(const std::string& folder);

// Removes all backups but the `keep` newest (at least one), and what interrupted backups have left:
// partial ones that were not written for a day. Returns how many backups were removed.
// FAILED_PRECONDITION, and none is removed, when the newest is not `made`, the path of the one made
// just now: a clock was ahead once, so what the names say of their age is wrong.
absl::StatusOr<int> RemoveOldBackups(const std::string& made, int keep);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BACKUP_FOLDER_H_
