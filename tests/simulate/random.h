// The numbers that decide a story. The same on every machine, unlike the distributions of <random>.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_RANDOM_H_
#define FAILBACK_TESTS_SIMULATE_RANDOM_H_

#include <cstdint>

#include "absl/time/time.h"

namespace failback::simulate {

// SplitMix64 (Steele, Lea, Flood 2014).
class SeededNumbers {
 public:
  explicit SeededNumbers(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n).
  int Pick(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  bool Percent(int percent) { return Pick(100) < percent; }
  double Unit() { return static_cast<double>(Next() >> 11) / 9007199254740992.0; }
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    return least + absl::Microseconds(static_cast<int64_t>(
                       Unit() * static_cast<double>(absl::ToInt64Microseconds(most - least))));
  }
  // Numbers of their own, which do not depend on how many are taken here later.
  SeededNumbers Fork() { return SeededNumbers(Next()); }

 private:
  uint64_t state_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_RANDOM_H_
