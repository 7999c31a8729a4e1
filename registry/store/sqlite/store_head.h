// The only row of a store file's table `store`.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_STORE_HEAD_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_STORE_HEAD_H_

#include <cstdint>
#include <optional>
#include <string>

#include "registry/store/sqlite/durability.h"
#include "registry/store/sqlite/storage.h"

namespace failback {

struct StoreHead {
  StoreIdentity identity;
  std::string boot_id;                        // of the machine's start in which it was last opened
  bool clean = true;                          // closed in good order
  Durability durability = Durability::kFull;  // of the last life
  uint64_t writes = 0;                        // groups of rows written, over all lives
  // Of all rows, each once (registry/store/sqlite/row_checksum.h); none: what the rows are as a
  // whole is not known.
  std::optional<uint64_t> row_sum;
};

// How a durability is kept in the file; other numbers mean kOff.
inline int64_t DurabilityNumber(Durability durability) {
  return durability == Durability::kFull ? 2 : durability == Durability::kNormal ? 1 : 0;
}
inline Durability DurabilityOf(int64_t number) {
  return number == 2 ? Durability::kFull : number == 1 ? Durability::kNormal : Durability::kOff;
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_STORE_HEAD_H_
