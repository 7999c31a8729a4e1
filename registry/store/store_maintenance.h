// What an operator does to a store's file: back it up while it is in use, put a backup in its
// place, check it.
//
// A backup is a copy of one moment. It reads the live file in one read transaction of its own,
// which in WAL mode neither waits for writers nor makes them wait; meanwhile the -wal file grows,
// as it cannot be folded in. The copy is read back in full before it gets its name, so a file with
// that name is a good one. Wherever a backup is opened, by RestoreStore or copied into place by
// hand, a new epoch begins.
//
// Paths are absolute or relative; errors name them. Codes: NOT_FOUND (no such file or folder),
// FAILED_PRECONDITION (in use, is there already, not a store, newer version, to be mended by a
// start of the registry), PERMISSION_DENIED, DATA_LOSS (damaged beyond what a start of the registry
// mends), UNAVAILABLE (disk full, locked: may pass).
//
// Thread safety: all functions from any thread, on different targets.

#ifndef FAILBACK_REGISTRY_STORE_STORE_MAINTENANCE_H_
#define FAILBACK_REGISTRY_STORE_STORE_MAINTENANCE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "registry/store/sqlite/sqlite_schema.h"

namespace failback {

struct StoreSummary {
  int schema = 0;  // as found, before any migration
  StoreIdentity identity;
  int64_t bytes = 0;  // of the file, without its -wal
  int64_t services = 0;
  int64_t instances = 0;
  int64_t tombstones = 0;
  int64_t sessions = 0;
  int64_t incarnations = 0;
};

// Is called with how many of `total` pages are copied.
using CopyProgress = std::function<void(int64_t done, int64_t total)>;

// Reads everything: SQLite's own structure, each row's checksum, each instance, and whether rows
// fit together. The store may be in use, and is not changed.
absl::StatusOr<StoreSummary> CheckStore(const std::string& path);

// Copies the store at `from`, which may be in use, to the new file `to`.
absl::StatusOr<StoreSummary> BackUpStore(const std::string& from, const std::string& to,
                                         const CopyProgress& progress);

struct RestoredStore {
  StoreSummary store;
  std::string replaced;  // where the store that was there is now; empty if there was none
};

// Puts a copy of the backup `from` in the place of the store at `to`, which must not be in use. A
// new epoch begins, so that agents send everything again and subscribers get a snapshot. What was
// there is kept beside it.
absl::StatusOr<RestoredStore> RestoreStore(const std::string& from, const std::string& to,
                                           const CopyProgress& progress);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_STORE_MAINTENANCE_H_
