// A digest of 64 bits under a key that this process has to itself.
//
// Who chooses the bytes cannot choose two that have the same digest, other than with Digest64
// (registry/model/canonical.h), whose collisions can be computed. It differs from process to
// process: not to be stored or sent.
//
// It is SipHash-1-3 (Aumasson, Bernstein 2012).
//
// Thread safety: all functions from any thread.

#ifndef FAILBACK_REGISTRY_WATCH_KEYED_HASH_H_
#define FAILBACK_REGISTRY_WATCH_KEYED_HASH_H_

#include <cstdint>
#include <string_view>

namespace failback {

uint64_t KeyedHash(std::string_view bytes);

// With a key of the caller's, for tests.
uint64_t SipHash13(uint64_t key0, uint64_t key1, std::string_view bytes);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_KEYED_HASH_H_
