#include "retry/histogram.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kBounds[] = {1, 10, 100};

TEST(HistogramTest, ABoundBelongsToItsOwnPlace) {
  Histogram histogram(kBounds);
  for (const int64_t value : {-5, 0, 1, 2, 10, 11, 100, 101, 1000000}) histogram.Observe(value);
  EXPECT_THAT(histogram.upper_bounds(), ElementsAre(1, 10, 100));
  EXPECT_THAT(histogram.counts(), ElementsAre(3, 2, 2, 2));
  EXPECT_EQ(histogram.count(), 9);
  EXPECT_EQ(histogram.sum(), 1000220);
}

TEST(HistogramTest, SumsAddUpAndACopyStaysAsItIs) {
  Histogram a(kBounds), b(kBounds);
  a.Observe(5);
  b.Observe(5);
  b.Observe(500);
  const Histogram before = a;
  a += b;
  EXPECT_THAT(a.counts(), ElementsAre(0, 2, 0, 1));
  EXPECT_EQ(a.sum(), 510);
  EXPECT_THAT(before.counts(), ElementsAre(0, 1, 0, 0));
}

TEST(HistogramTest, TheSharedBoundsAscend) {
  const auto ascend = [](absl::Span<const int64_t> bounds) {
    return std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
  };
  EXPECT_TRUE(ascend(kLatencyBoundsNanos));
  EXPECT_TRUE(ascend(kWaitBoundsNanos));
  EXPECT_TRUE(ascend(kBatchBounds));
}

TEST(AtomicHistogramTest, NothingIsLostBetweenThreads) {
  AtomicHistogram histogram(kBounds);
  constexpr int kThreads = 4, kEach = 10000;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&histogram] {
      for (int i = 0; i < kEach; ++i) {
        for (const int64_t value : {1, 10, 100, 1000}) histogram.Observe(value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(histogram.Snapshot().counts(), Each(kThreads * kEach));
  EXPECT_EQ(histogram.Snapshot().sum(), int64_t{1111} * kThreads * kEach);
}

}  // namespace
}  // namespace failback
