// The checksums that the rows of a store's file carry, so that a damaged one is noticed when it is
// read. SQLite has none, and a flipped bit in a number leaves the file's structure whole.
//
// A row that is whole may yet be an old one. SQLite ends its log before the first frame that is
// damaged, and the file below it may have newer pages already: together they are a state that never
// was, in which each row has the checksum that it needs. So the head keeps the sum of all rows,
// which each commit brings up to date: of a row that goes the part is subtracted, of one that comes
// it is added, in any order.
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

// Revisions are left out of a record's: they start over with an epoch, in all rows at once.
int64_t Checksum(const RecordRow& row);
int64_t Checksum(const SessionRow& row);
int64_t Checksum(const IncarnationRow& row);
int64_t Checksum(const StoreHead& head);

// What a row with this checksum adds to the sum of all rows, which wraps around.
uint64_t RecordPart(int64_t checksum, uint64_t create_revision, uint64_t modify_revision);
uint64_t SessionPart(int64_t checksum);
uint64_t IncarnationPart(int64_t checksum);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_ROW_CHECKSUM_H_
