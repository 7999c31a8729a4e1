// The system's entropy, from a seed: a program that links this replays, to the byte, what it writes
// to disk. getentropy is this library's in the whole program.
//
// Thread safety: none; one thread.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_SEEDED_ENTROPY_H_
#define FAILBACK_TESTS_SIMULATE_DISK_SEEDED_ENTROPY_H_

#include <cstdint>

namespace failback {

// From here on ids, epochs and SQLite's own numbers follow from `seed`.
void SeedEntropy(uint64_t seed);

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_SEEDED_ENTROPY_H_
