// Whether a process that does the same all the time takes more and more memory.
//
// The memory of a process that is loaded steadily goes up and down, in steps and spikes, and rises
// while it warms up. So what counts is the slope over the last two thirds of the samples, as the
// median of the slopes between all pairs of them (Theil and Sen): up to a quarter of the samples
// may be anything.
//
// Thread safety: none of its own.

#ifndef FAILBACK_TESTS_SOAK_GROWTH_H_
#define FAILBACK_TESTS_SOAK_GROWTH_H_

#include <cstdint>
#include <vector>

namespace failback {

struct MemorySample {
  double seconds = 0;
  double kib = 0;
};

struct Growth {
  double kib_per_second = 0;
  double kib = 0;          // over the time that was looked at
  double allowed_kib = 0;  // what noise may make of nothing: 2 MiB, and a hundredth of all
  bool too_much() const { return kib > allowed_kib; }
};

// Of samples in order of time. Over 160 s, as in ten minutes of soak, 20 KiB a second are noticed.
Growth GrowthOf(const std::vector<MemorySample>& samples);

}  // namespace failback

#endif  // FAILBACK_TESTS_SOAK_GROWTH_H_
