// A part of the table of what is pending, for readers that want it page by page: of ten thousand
// rows a page takes the memory of its own.
//
// Thread safety: a plain value.

#ifndef FAILBACK_REGISTRY_FAILBACK_PENDING_RANGE_H_
#define FAILBACK_REGISTRY_FAILBACK_PENDING_RANGE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace failback {

struct PendingRange {
  std::string from;        // the first id that may be in it
  size_t most = SIZE_MAX;  // of its rows
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_PENDING_RANGE_H_
