// A fuzz target on random bytes, without a fuzzer: it builds, runs and finds nothing. The seed is
// printed; FAILBACK_TEST_SEED gives it back. FAILBACK_FUZZ_ROUNDS says how many inputs.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <vector>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

TEST(FuzzSmokeTest, RandomBytes) {
  const char* const given = std::getenv("FAILBACK_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::cout << "FAILBACK_TEST_SEED=" << seed << std::endl;
  const char* const asked = std::getenv("FAILBACK_FUZZ_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 200;
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    std::vector<uint8_t> bytes(random() % 1500);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());  // aborts when it finds something
  }
}
