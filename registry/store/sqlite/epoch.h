// A new life of a store.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_EPOCH_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_EPOCH_H_

#include <cstdint>

namespace failback {

// Random, from 1 to 2^53 - 1, so that it is exact in a JSON number too. May be called from any
// thread.
uint64_t NewEpoch();

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_EPOCH_H_
