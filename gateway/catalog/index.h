// The number by which a client says which state of a set it has seen (Consul's `X-Consul-Index`).
//
// It grows with each change of one set while one daemon follows it. What begins a set again (this
// daemon starts, it has not followed the set for a while, the store begins a new epoch) begins the
// numbers at the second of that moment, times 2^22; so a number of before, or of another daemon, is
// hardly ever one that is current here, and never one that looks newer for long. It stays below
// 2^53, which is what clients in JavaScript can tell apart, until the year 2038.
//
//   uint64_t index = FirstIndex(absl::Now());
//   index = NextIndex(index);                     // a change
//   index = RestartIndex(index, absl::Now());     // a new epoch
//
// Thread safety: the functions are pure.

#ifndef FAILBACK_GATEWAY_CATALOG_INDEX_H_
#define FAILBACK_GATEWAY_CATALOG_INDEX_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace failback::catalog {

inline constexpr int kIndexChangeBits = 22;

inline uint64_t FirstIndex(absl::Time now) {
  return static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixSeconds(now))) << kIndexChangeBits |
         1;
}

inline uint64_t NextIndex(uint64_t index) { return index + 1; }

// Grows in any case, also when the clock was set back.
inline uint64_t RestartIndex(uint64_t index, absl::Time now) {
  return std::max(NextIndex(index), FirstIndex(now));
}

}  // namespace failback::catalog

#endif  // FAILBACK_GATEWAY_CATALOG_INDEX_H_
