// The checksums that the rows of a store's file carry, so that a damaged one is noticed when it is
// read. SQLite has none, and a flipped bit in a number leaves the file's structure whole.
//
// They are kept on disk: the same row has the same sum ever after. Not cryptographic.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_ROW_CHECKSUM_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_ROW_CHECKSUM_H_

#include <cstdint>

#include "registry/store/sqlite/storage.h"
#include "registry/store/sqlite/store_head.h"

namespace failback {

// Revisions are left out: they start over with an epoch, in all rows at once.
int64_t Checksum(const RecordRow& row);
int64_t Checksum(const SessionRow& row);
int64_t Checksum(const IncarnationRow& row);
int64_t Checksum(const StoreHead& head);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_ROW_CHECKSUM_H_
