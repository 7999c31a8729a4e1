// Counts observations by their size, as a Prometheus histogram does: cheap enough to be kept under
// a lock that is held anyway, and without any metrics library.
//
// The bounds are the caller's, in the unit of the values (nanoseconds, items); a value belongs to
// the first bound that is not below it, or is above them all. An observation is a short search and
// two additions.
//
//   constexpr int64_t kBounds[] = {1, 10, 100};
//   Histogram sizes(kBounds);
//   sizes.Observe(7);                      // counts() is 0, 1, 0, 0
//
// Thread safety: none; the owner's lock. A copy is a snapshot. AtomicHistogram: all methods from
// any thread; its snapshots are not of one moment.

#ifndef FAILBACK_RETRY_HISTOGRAM_H_
#define FAILBACK_RETRY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace failback {

// Bounds in nanoseconds: of what should take no time, 50 us to 10 s; and of what waits for
// something to be well again, 10 ms to a day.
inline constexpr int64_t kLatencyBoundsNanos[] = {
    50'000,      100'000,       250'000,       500'000,       1'000'000,     2'500'000,
    5'000'000,   10'000'000,    25'000'000,    50'000'000,    100'000'000,   250'000'000,
    500'000'000, 1'000'000'000, 2'500'000'000, 5'000'000'000, 10'000'000'000};
inline constexpr int64_t kWaitBoundsNanos[] = {
    10'000'000,      100'000'000,     250'000'000,       500'000'000,        1'000'000'000,
    2'500'000'000,   5'000'000'000,   10'000'000'000,    30'000'000'000,     60'000'000'000,
    300'000'000'000, 900'000'000'000, 3'600'000'000'000, 21'600'000'000'000, 86'400'000'000'000};
// Of how much is done at once.
inline constexpr int64_t kBatchBounds[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000};

class Histogram {
 public:
  static constexpr size_t kMaxBounds = 20;

  // `upper_bounds` ascend, and outlive the histogram.
  template <size_t kBounds>
  explicit constexpr Histogram(const int64_t (&upper_bounds)[kBounds])
      : bounds_(upper_bounds), size_(kBounds) {
    static_assert(kBounds <= kMaxBounds, "too many bounds");
  }

  void Observe(int64_t value) {
    ++counts_[PlaceOf(value)];
    sum_ += value;
  }

  // Adds what `other`, which has the same bounds, has counted.
  Histogram& operator+=(const Histogram& other) {
    for (size_t i = 0; i <= size_; ++i) counts_[i] += other.counts_[i];
    sum_ += other.sum_;
    return *this;
  }

  absl::Span<const int64_t> upper_bounds() const { return {bounds_, size_}; }
  // One for each bound, and last those above all; not cumulative.
  absl::Span<const int64_t> counts() const { return {counts_.data(), size_ + 1}; }
  int64_t sum() const { return sum_; }
  int64_t count() const {
    int64_t count = 0;
    for (const int64_t n : counts()) count += n;
    return count;
  }

 private:
  friend class AtomicHistogram;
  size_t PlaceOf(int64_t value) const {
    return static_cast<size_t>(std::lower_bound(bounds_, bounds_ + size_, value) - bounds_);
  }

  const int64_t* bounds_;
  size_t size_;
  std::array<int64_t, kMaxBounds + 1> counts_{};
  int64_t sum_ = 0;
};

class AtomicHistogram {
 public:
  template <size_t kBounds>
  explicit AtomicHistogram(const int64_t (&upper_bounds)[kBounds]) : none_(upper_bounds) {}

  void Observe(int64_t value) {
    counts_[none_.PlaceOf(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  Histogram Snapshot() const {
    Histogram snapshot = none_;
    for (size_t i = 0; i < counts_.size(); ++i) {
      snapshot.counts_[i] = counts_[i].load(std::memory_order_relaxed);
    }
    snapshot.sum_ = sum_.load(std::memory_order_relaxed);
    return snapshot;
  }

 private:
  const Histogram none_;
  std::array<std::atomic<int64_t>, Histogram::kMaxBounds + 1> counts_{};
  std::atomic<int64_t> sum_{0};
};

}  // namespace failback

#endif  // FAILBACK_RETRY_HISTOGRAM_H_
