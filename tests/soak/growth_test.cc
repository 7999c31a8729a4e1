#include "tests/soak/growth.h"

#include <functional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace failback {
namespace {

// A sample a second, with noise of half a megabyte to either side.
std::vector<MemorySample> Samples(int seconds, const std::function<double(int)>& kib) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(-512, 512);
  std::vector<MemorySample> samples;
  for (int i = 0; i < seconds; ++i) {
    samples.push_back({static_cast<double>(i), kib(i) + noise(random)});
  }
  return samples;
}

TEST(GrowthTest, ALeakOfThirtyKibASecondIsNoticed) {
  const Growth growth = GrowthOf(Samples(240, [](int i) { return 40000 + 30 * i; }));
  EXPECT_NEAR(growth.kib_per_second, 30, 3);
  EXPECT_NEAR(growth.kib, 4800, 500);
  EXPECT_TRUE(growth.too_much());
}

TEST(GrowthTest, TwentyKibASecondAreTooMuchAndEightAreNot) {
  EXPECT_FALSE(GrowthOf(Samples(240, [](int i) { return 40000 + 8 * i; })).too_much());
  EXPECT_TRUE(GrowthOf(Samples(240, [](int i) { return 40000 + 20 * i; })).too_much());
}

TEST(GrowthTest, NoiseSpikesSawteethAndWarmingUpAreNot) {
  EXPECT_FALSE(GrowthOf(Samples(240, [](int) { return 40000; })).too_much());
  EXPECT_FALSE(GrowthOf(Samples(240, [](int i) { return i % 8 == 0 ? 90000 : 40000; })).too_much());
  EXPECT_FALSE(GrowthOf(Samples(240, [](int i) { return 40000 + i % 40 * 100; })).too_much());
  EXPECT_FALSE(GrowthOf(Samples(240, [](int i) { return i < 80 ? 500 * i : 40000; })).too_much());
  EXPECT_FALSE(GrowthOf(Samples(240, [](int i) { return i < 220 ? 40000 : 60000; })).too_much());
  EXPECT_FALSE(GrowthOf(Samples(240, [](int i) { return 60000 - 50 * i; })).too_much());
}

TEST(GrowthTest, FewSamplesSayNothing) {
  EXPECT_FALSE(GrowthOf({}).too_much());
  EXPECT_FALSE(GrowthOf({{0, 1000}}).too_much());
  EXPECT_FALSE(GrowthOf({{5, 1000}, {5, 90000}}).too_much());
}

}  // namespace
}  // namespace failback
