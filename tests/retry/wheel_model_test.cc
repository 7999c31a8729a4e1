// Random operation sequences against a std::multimap. A failure prints its seed; give it back with
// FAILBACK_TEST_SEED to replay it, and FAILBACK_TEST_ROUNDS for a longer run.

#include "tests/retry/wheel_model.h"

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/util/environment.h"

namespace failback {
namespace {

void PlayMany(std::string (*play)(const uint8_t*, size_t), uint64_t rounds) {
  const bool replay = std::getenv("FAILBACK_TEST_SEED") != nullptr;
  const uint64_t first = FromEnvironment<uint64_t>("FAILBACK_TEST_SEED", std::random_device()());
  std::cout << "seeds from FAILBACK_TEST_SEED=" << first << " on\n";
  if (!replay) rounds = FromEnvironment<uint64_t>("FAILBACK_TEST_ROUNDS", rounds);
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<uint8_t> bytes(random() % 6000);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    ASSERT_EQ(play(bytes.data(), bytes.size()), "") << "FAILBACK_TEST_SEED=" << seed;
  }
}

TEST(WheelModelTest, AWheelDoesWhatAMultimapDoes) { PlayMany(PlayOnWheel, 60); }

TEST(WheelModelTest, ATimerDoesWhatAMultimapDoes) { PlayMany(PlayOnTimer, 200); }

}  // namespace
}  // namespace failback
