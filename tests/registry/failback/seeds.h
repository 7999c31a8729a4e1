// Runs random stories by seed: as many as a test takes by default, or as the environment says.
//
//   FAILBACK_SEED=n        the one story with that seed
//   FAILBACK_SEEDS=n       as many in all
//   FAILBACK_FIRST_SEED=n  from this one on (default 1)
//
//   RunSeeds(10000, {kBlocks, GetParam()}, [](uint32_t seed) { Story(seed).Run(); });
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_SEEDS_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_SEEDS_H_

#include <cstdint>
#include <iostream>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "tests/util/environment.h"

namespace failback {

// A block of `count`: Bazel spreads the blocks over its shards.
struct SeedBlock {
  int count;
  int index;
};

// Runs the block's part of `otherwise` stories. Stops after the first that fails, and prints its
// seed.
inline void RunSeeds(uint32_t otherwise, SeedBlock block,
                     absl::FunctionRef<void(uint32_t seed)> story) {
  const uint32_t only = FromEnvironment<uint32_t>("FAILBACK_SEED", 0);
  if (only != 0 && block.index != 0) return;
  const uint32_t seeds = only != 0 ? 1 : FromEnvironment("FAILBACK_SEEDS", otherwise) / block.count;
  const uint32_t first =
      only != 0 ? only : FromEnvironment<uint32_t>("FAILBACK_FIRST_SEED", 1) + seeds * block.index;
  for (uint32_t seed = first; seed < first + seeds; ++seed) {
    story(seed);
    if (testing::Test::HasFailure()) {
      std::cerr << "seed " << seed << " failed; again with FAILBACK_SEED=" << seed << "\n";
      return;
    }
  }
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAILBACK_SEEDS_H_
