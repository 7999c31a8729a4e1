// Tells many stories and says which seed broke a promise.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_RUN_STORIES_H_
#define FAILBACK_TESTS_SIMULATE_DISK_RUN_STORIES_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "tests/simulate/disk/story_result.h"
#include "tests/util/environment.h"

namespace failback {

inline void RunStories(StoryResult (*tell)(uint64_t seed), uint64_t seeds) {
  if (std::getenv("FAILBACK_TEST_SEED") == nullptr) {
    SetLogSink(LogLevel::kError, [](LogLevel, const std::string&, const LogFields&) {});
  }
  uint64_t first = FromEnvironment<uint64_t>("FAILBACK_TEST_FIRST_SEED", 1);
  seeds = FromEnvironment<uint64_t>("FAILBACK_TEST_SEEDS", seeds);
  const bool one = std::getenv("FAILBACK_TEST_SEED") != nullptr;
  if (one) {
    first = FromEnvironment<uint64_t>("FAILBACK_TEST_SEED", 0);
    seeds = 1;
  }
  StoryResult all;
  const absl::Time begin = absl::Now();
  uint64_t told = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed, ++told) {
    const StoryResult result = tell(seed);
    all.calls += result.calls;
    all.acknowledged += result.acknowledged;
    all.refused += result.refused;
    all.cuts += result.cuts;
    all.flips += result.flips;
    all.flips_refused += result.flips_refused;
    all.doubts += result.doubts;
    if (one || !result.violation.empty()) {
      for (const std::string& line : result.told) std::cout << line << "\n";
    }
    if (!result.violation.empty()) {
      FAIL() << "FAILBACK_TEST_SEED=" << seed << " replays this: " << result.violation << "\nafter "
             << told << " seeds";
    }
  }
  std::cout << seeds << " seeds from " << first << ", "
            << static_cast<double>(seeds) / absl::ToDoubleSeconds(absl::Now() - begin)
            << " a second: " << all.calls << " calls to the disk, " << all.acknowledged
            << " acknowledged, " << all.refused << " refused, " << all.cuts << " power cuts, "
            << all.doubts << " in doubt, " << all.flips << " bits flipped, of which "
            << all.flips_refused << " were refused\n";
}

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_RUN_STORIES_H_
