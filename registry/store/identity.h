// Names that nobody can guess, and that no other store has.
//
// Thread safety: all functions may be called from any thread.

#ifndef FAILBACK_REGISTRY_STORE_IDENTITY_H_
#define FAILBACK_REGISTRY_STORE_IDENTITY_H_

#include <cstdint>
#include <string>

namespace failback {

// 128 bits from the kernel, as 32 hexadecimal digits.
std::string NewStoreId();
std::string NewSessionId();

// From 1 to 2^53 - 1, so that it is exact in a JSON number too.
uint64_t NewEpoch();

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_IDENTITY_H_
