// Stories of agents on a model of etcd. FAILBACK_TEST_SEED=n tells that of one seed, with all that
// happens; FAILBACK_TEST_SEEDS=n that many.
#include "tests/simulate/etcd/etcd_story.h"

#include <cstdlib>
#include <iostream>

#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "tests/util/environment.h"

namespace failback::simulate {
namespace {

TEST(EtcdStoryTest, WhatIsWantedIsInEtcdAndSubscribersHaveIt) {
  const bool one = std::getenv("FAILBACK_TEST_SEED") != nullptr;
  if (!one) SetLogSink(LogLevel::kError, [](LogLevel, const std::string&, const LogFields&) {});
  const auto first = FromEnvironment<uint64_t>("FAILBACK_TEST_SEED", 1);
  const uint64_t seeds = one ? 1 : FromEnvironment<uint64_t>("FAILBACK_TEST_SEEDS", 200);
  int64_t revisions = 0, events = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const EtcdStoryResult result = TellEtcdStory(seed);
    revisions += result.revisions;
    events += result.events;
    if (one || !result.violation.empty()) {
      for (const std::string& line : result.told) std::cout << line << "\n";
    }
    if (!result.violation.empty()) {
      FAIL() << "FAILBACK_TEST_SEED=" << seed << " replays this: " << result.violation;
    }
  }
  std::cout << seeds << " stories: " << revisions << " revisions of etcd, " << events
            << " events\n";
  EXPECT_GT(events, one ? 0 : static_cast<int64_t>(seeds)) << "nothing reaches subscribers";
}

TEST(EtcdStoryTest, ASeedIsTheSameStoryEveryTime) {
  for (const uint64_t seed : {3, 16, 36}) {
    const EtcdStoryResult first = TellEtcdStory(seed), second = TellEtcdStory(seed);
    EXPECT_EQ(first.told, second.told) << "seed " << seed;
    EXPECT_EQ(first.revisions, second.revisions) << "seed " << seed;
  }
}

}  // namespace
}  // namespace failback::simulate
