#include "tests/simulate/disk/seeded_entropy.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstddef>
#include <random>

namespace failback {
namespace {

std::mt19937_64& Numbers() {
  static auto* const numbers = new std::mt19937_64;
  return *numbers;
}

}  // namespace

void SeedEntropy(uint64_t seed) {
  Numbers().seed(seed);
  // Zero would ask the system.
  sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, static_cast<int>(seed % 0x7fffffff) + 1, nullptr);
}

}  // namespace failback

// NOLINTNEXTLINE(readability-identifier-naming): the C library's name.
extern "C" int getentropy(void* buffer, size_t size) {
  auto* const bytes = static_cast<unsigned char*>(buffer);
  std::generate(bytes, bytes + size,
                [] { return static_cast<unsigned char>(failback::Numbers()()); });
  return 0;
}
