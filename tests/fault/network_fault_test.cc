// The network between agent and registry: slow, silent, closed, cut in mid-stream.

#include <random>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/fault/fleet.h"

namespace failback {
namespace {

constexpr int kThreads = 4;
constexpr int kIds = 12;

// How late each direction is.
struct Lateness {
  const char* name;
  absl::Duration to_server;
  absl::Duration to_client;
};

class SlowFaultTest : public ::testing::TestWithParam<Lateness> {};

// Every call is given up before its answer comes, and is applied all the same; with late requests
// also after newer ones were stated.
TEST_P(SlowFaultTest, LateAndApplied) {
  Fleet::Options options;
  options.agent = Fleet::AgentKind::kLibrary;
  options.call_timeout = absl::Milliseconds(200);
  options.ttl = absl::Seconds(30);
  Fleet fleet(options);
  fleet.RegisterMany(10);
  fleet.Register("leaves");
  ASSERT_TRUE(fleet.Converged());

  fleet.proxy().Delay(GetParam().to_server, GetParam().to_client);
  fleet.Register("joins");
  fleet.Unregister("leaves");
  fleet.Register("i-3", 9090);
  EXPECT_TRUE(fleet.WaitForFailure(absl::StatusCode::kDeadlineExceeded)) << "no call was late";
  EXPECT_TRUE(Eventually([&] {
    const auto listed = fleet.Listed();
    return listed.ok() && listed->count("joins") == 1 && listed->count("leaves") == 0;
  })) << "late calls are applied";
  {
    Churn churn(&fleet, kThreads, kIds, TestSeed());
    churn.Go(200);
  }
  fleet.proxy().Forward();
  EXPECT_TRUE(fleet.Converged());
}

INSTANTIATE_TEST_SUITE_P(
    Directions, SlowFaultTest,
    ::testing::Values(Lateness{"Answers", absl::ZeroDuration(), absl::Milliseconds(500)},
                      Lateness{"Requests", absl::Milliseconds(500), absl::ZeroDuration()},
                      Lateness{"Both", absl::Milliseconds(300), absl::Milliseconds(300)}),
    [](const auto& info) { return info.param.name; });

TEST(NetworkFaultTest, BlackHoleUntilTheSessionHasEnded) {
  Fleet::Options options;
  options.ttl = Fleet::kShortTtl;
  Fleet fleet(options);
  fleet.MayLapse();
  fleet.RegisterMany(10);
  fleet.Register("leaves");
  ASSERT_TRUE(fleet.Converged());

  fleet.proxy().BlackHole();
  fleet.Register("joins");
  fleet.Unregister("leaves");
  EXPECT_TRUE(Eventually([&] {
    const auto listed = fleet.Listed();
    return listed.ok() && listed->empty();
  })) << "the session has ended";
  fleet.proxy().Forward();
  EXPECT_TRUE(fleet.Converged());
}

TEST(NetworkFaultTest, BlackHoleUnderLoad) {
  Fleet::Options options;
  options.agent = Fleet::AgentKind::kLibrary;
  Fleet fleet(options);
  fleet.MayLapse();
  Churn churn(&fleet, kThreads, kIds, TestSeed());
  for (int round = 0; round < 3; ++round) {
    fleet.proxy().BlackHole();
    EXPECT_TRUE(fleet.WaitForFailure());
    fleet.watcher().Close();  // and not a word after
    fleet.watcher().EnsureOpen();
    fleet.proxy().Forward();
    churn.Go(50);
  }
  churn.Stop();
  EXPECT_TRUE(fleet.Converged());
}

TEST(NetworkFaultTest, Refused) {
  Fleet fleet;
  fleet.RegisterMany(10);
  fleet.Register("leaves");
  ASSERT_TRUE(fleet.Converged());
  fleet.proxy().Refuse();
  fleet.Register("joins");
  fleet.Unregister("leaves");
  ASSERT_TRUE(fleet.WaitForUpstream(agent::v1::UPSTREAM_STATE_CONNECTING));
  fleet.proxy().Forward();
  EXPECT_TRUE(fleet.Converged());
}

TEST(NetworkFaultTest, ConnectionsResetAtRandomMoments) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  Fleet fleet;
  Churn churn(&fleet, kThreads, kIds, seed);
  for (int round = 0; round < 25; ++round) {
    churn.Go(static_cast<int64_t>(random() % 30));
    fleet.proxy().ResetAll();
    if (round % 5 == 0) {
      fleet.watcher().Close();  // and not a word after
      fleet.watcher().EnsureOpen();
    }
  }
  churn.Stop();
  EXPECT_TRUE(fleet.Converged());
}

// Whatever was half-sent at the cut: a frame of the snapshot, a batch, an answer.
TEST(NetworkFaultTest, CutInMidStream) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  Fleet fleet;
  fleet.RegisterMany(200);
  Churn churn(&fleet, kThreads, kIds, seed);
  for (int round = 0; round < 25; ++round) {
    const auto direction = random() % 2 == 0 ? FaultProxy::kToServer : FaultProxy::kToClient;
    const int64_t cuts = fleet.proxy().stats().cuts;
    fleet.proxy().CutAfter(direction, 1 + random() % 20000);
    EXPECT_TRUE(Eventually([&] { return fleet.proxy().stats().cuts > cuts; }));
  }
  fleet.proxy().Forward();
  churn.Stop();
  EXPECT_TRUE(fleet.Converged());
}

}  // namespace
}  // namespace failback
