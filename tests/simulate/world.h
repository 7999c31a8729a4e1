// What all parts of a story share: the time, the network, what has gone wrong, and the timeline.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_WORLD_H_
#define FAILBACK_TESTS_SIMULATE_WORLD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "retry/simulated_clock.h"
#include "tests/simulate/network.h"

namespace failback::simulate {

struct World {
  World(uint64_t seed, int links) : network(&clock, seed, links) {}

  int64_t now() const { return clock.NowNanos(); }
  double seconds() const { return static_cast<double>(now()) / 1e9; }

  // A line of the timeline.
  void Tell(const std::string& line) {
    if (traced) timeline.push_back(absl::StrFormat("%9.3f  %s", seconds(), line));
  }
  // A property does not hold; the first one counts. `checker` names the property.
  void Fail(const std::string& checker, const std::string& what) {
    if (!failed.empty()) return;
    failed = checker;
    failure = what;
    Tell(absl::StrCat("VIOLATION ", checker, ": ", what));
  }

  SimulatedClock clock;
  Network network;
  bool traced = false;
  std::vector<std::string> timeline;
  std::string failed;   // the property; empty: all hold
  std::string failure;  // in words
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_WORLD_H_
