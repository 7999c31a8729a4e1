// The agent is killed, again and again, while intents are stated: what it has accepted it carries
// out when it is back. And it gives back the memory that an outage took.

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/fault/fleet.h"
#include "tests/util/sanitized_build.h"

namespace failback {
namespace {

constexpr int kThreads = 4;
constexpr int kIds = 12;

Fleet::Options WithState() {
  Fleet::Options options;
  options.agent_has_state = true;
  return options;
}

TEST(AgentKillTest, WhatWasAcceptedDuringAnOutageSurvives) {
  Fleet fleet(WithState());
  fleet.RegisterMany(20);
  fleet.Register("leaves");
  ASSERT_TRUE(fleet.Converged());
  fleet.KillRegistry();
  fleet.Unregister("leaves");
  fleet.Register("joins");
  fleet.Register("i-3", 9090);
  fleet.KillAgent();
  fleet.StartAgent();
  fleet.StartRegistry();
  EXPECT_TRUE(fleet.Converged());
}

TEST(AgentKillTest, WhatWasAcknowledgedIsStillThere) {
  Fleet fleet(WithState());
  fleet.RegisterMany(20);
  fleet.Register("left");
  fleet.Unregister("left");
  ASSERT_TRUE(fleet.Converged());
  fleet.KillAgent();
  fleet.RestartRegistryEmpty();
  fleet.StartAgent();
  EXPECT_TRUE(fleet.Converged());
}

TEST(AgentKillTest, AtRandomMoments) {
  const bool whole = std::getenv("FAILBACK_FAULT_LONG") != nullptr;
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  Fleet fleet(WithState());
  fleet.RegisterMany(50);
  Churn churn(&fleet, kThreads, kIds, seed);
  for (int round = 0; round < (whole ? 200 : 20); ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " round ", round));
    churn.Go(static_cast<int64_t>(random() % 30));
    fleet.KillAgent();
    const bool registry_too = random() % 4 == 0;
    if (registry_too) fleet.KillRegistry();
    fleet.StartAgent();
    fleet.watcher().EnsureOpen();
    if (registry_too) fleet.StartRegistry();
  }
  churn.Stop();
  EXPECT_TRUE(fleet.Converged());
}

// Resident memory of a process, in KiB.
int64_t ResidentKib(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  while (status >> word) {
    int64_t kib;
    if (word == "VmRSS:" && status >> kib) return kib;
  }
  return -1;
}

class AgentMemoryTest : public ::testing::Test {
 protected:
  static constexpr int kMany = 10000;

  AgentMemoryTest() {
    // One heap for all threads: how many there are, and which gets what, is not the question.
    setenv("MALLOC_ARENA_MAX", "1", 1);
  }

  static Fleet::Options Unwatched() {
    Fleet::Options options;
    options.watched = false;
    return options;
  }

  // Takes what `cycle` does once for granted, as an allocator keeps what it once had, and more of
  // the same must not need more.
  void ExpectNoGrowth(Fleet* fleet, const std::function<void()>& cycle) {
    cycle();
    const int64_t first = ResidentKib(fleet->agent().pid());
    ASSERT_GT(first, 0);
    for (int i = 0; i < 2; ++i) cycle();
    const int64_t last = ResidentKib(fleet->agent().pid());
    std::printf("resident: %lld KiB after one round, %lld KiB after three\n",
                static_cast<long long>(first), static_cast<long long>(last));
    if (kMemoryIsMeasurable) {
      EXPECT_LT(last, first + first / 8 + 4096);
    }
  }
};

TEST_F(AgentMemoryTest, FailedIntentsThatAreAcknowledgedLater) {
  Fleet fleet(Unwatched());
  ExpectNoGrowth(&fleet, [&] {
    fleet.proxy().Refuse();
    ASSERT_TRUE(fleet.WaitForUpstream(agent::v1::UPSTREAM_STATE_CONNECTING));
    fleet.RegisterMany(kMany);
    EXPECT_EQ(fleet.Pending().size(), kMany);
    fleet.RetryAll();
    fleet.proxy().Forward();
    EXPECT_TRUE(fleet.Converged());
    fleet.UnregisterMany(kMany);
    EXPECT_TRUE(fleet.Converged());
  });
}

TEST_F(AgentMemoryTest, FailedIntentsThatAreCancelled) {
  Fleet fleet(Unwatched());
  ExpectNoGrowth(&fleet, [&] {
    fleet.proxy().Refuse();
    ASSERT_TRUE(fleet.WaitForUpstream(agent::v1::UPSTREAM_STATE_CONNECTING));
    fleet.RegisterMany(kMany);
    EXPECT_EQ(fleet.Pending().size(), kMany);
    fleet.RetryAll();
    fleet.CancelAll();
    EXPECT_TRUE(fleet.Pending().empty());
    fleet.UnregisterMany(kMany);
    fleet.proxy().Forward();
    EXPECT_TRUE(fleet.Converged());
  });
}

}  // namespace
}  // namespace failback
