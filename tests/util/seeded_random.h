// Random numbers of a test that can be replayed: the seed is printed, and FAILBACK_TEST_SEED=n
// gives it back.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_UTIL_SEEDED_RANDOM_H_
#define FAILBACK_TESTS_UTIL_SEEDED_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <random>

#include "tests/util/environment.h"

namespace failback {

class SeededRandom {
 public:
  SeededRandom() { std::cout << "FAILBACK_TEST_SEED=" << seed_ << " replays this" << std::endl; }

  // One of 0..n-1.
  int Pick(size_t n) { return static_cast<int>(engine_() % n); }
  std::mt19937_64& engine() { return engine_; }

 private:
  const uint64_t seed_ = FromEnvironment<uint64_t>("FAILBACK_TEST_SEED", std::random_device()());
  std::mt19937_64 engine_{seed_};
};

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_SEEDED_RANDOM_H_
