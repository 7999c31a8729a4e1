// The registry dies, stops, flaps, comes back as another: real daemons, real signals.

#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/fault/fleet.h"

namespace failback {
namespace {

using agent::v1::UPSTREAM_STATE_CONNECTING;

constexpr int kThreads = 4;
constexpr int kIds = 12;

// Intents that are accepted between two faults of a series.
constexpr int64_t kSomeIntents = 40;

// What changes while the registry is unavailable.
void ChangeIntents(Fleet* fleet) {
  fleet->Unregister("leaves");
  fleet->Register("joins");
  fleet->Register("i-3", 9090);  // an update
  fleet->Register("flickers");
  fleet->Unregister("flickers");
  fleet->Unregister("returns");
  fleet->Register("returns");
}

void BeginWith(Fleet* fleet) {
  fleet->RegisterMany(20);
  fleet->Register("leaves");
  fleet->Register("returns");
  ASSERT_TRUE(fleet->Converged());
}

TEST(OutageFaultTest, KilledRegistry) {
  Fleet fleet;
  BeginWith(&fleet);
  fleet.KillRegistry();
  ChangeIntents(&fleet);
  ASSERT_TRUE(fleet.WaitForUpstream(UPSTREAM_STATE_CONNECTING));
  fleet.StartRegistry();
  EXPECT_TRUE(fleet.Converged());
}

TEST(OutageFaultTest, KilledRegistryUnderLoad) {
  Fleet fleet;
  Churn churn(&fleet, kThreads, kIds, TestSeed());
  for (int round = 0; round < 3; ++round) {
    fleet.KillRegistry();
    fleet.StartRegistry();
    churn.Go(kSomeIntents);
  }
  churn.Stop();
  EXPECT_TRUE(fleet.Converged());
}

TEST(OutageFaultTest, RegistryStoppedForLessThanTheTtl) {
  Fleet fleet;
  BeginWith(&fleet);
  fleet.PauseRegistry();
  ChangeIntents(&fleet);
  EXPECT_FALSE(fleet.Pending().empty());
  fleet.ContinueRegistry();
  EXPECT_TRUE(fleet.Converged());
}

TEST(OutageFaultTest, RegistryStoppedForLongerThanTheTtlBlamesNobody) {
  Fleet::Options options;
  options.ttl = Fleet::kShortTtl;
  Fleet fleet(options);
  fleet.RegisterMany(20);
  ASSERT_TRUE(fleet.Converged());
  const auto before = fleet.Listed();
  ASSERT_TRUE(before.ok()) << before.status();

  fleet.PauseRegistry();
  fleet.WaitForASessionToRunOut(options.ttl);
  fleet.ContinueRegistry();
  EXPECT_TRUE(fleet.Converged());
  const auto after = fleet.Listed();
  ASSERT_TRUE(after.ok()) << after.status();
  for (const auto& [id, record] : *before) {
    EXPECT_EQ(after->at(id).create_revision(), record.create_revision()) << id << " was evicted";
  }
}

TEST(OutageFaultTest, IntentsOfALongStopArrive) {
  Fleet::Options options;
  options.ttl = Fleet::kShortTtl;
  Fleet fleet(options);
  fleet.MayLapse();
  BeginWith(&fleet);
  fleet.PauseRegistry();
  ChangeIntents(&fleet);
  fleet.WaitForASessionToRunOut(options.ttl);
  fleet.ContinueRegistry();
  EXPECT_TRUE(fleet.Converged());
}

TEST(OutageFaultTest, RegistryRestartedEmpty) {
  Fleet fleet;
  BeginWith(&fleet);
  fleet.Unregister("i-7");
  fleet.RestartRegistryEmpty();
  ChangeIntents(&fleet);
  EXPECT_TRUE(fleet.Converged());
}

TEST(OutageFaultTest, RegistryRestartedEmptyUnderLoad) {
  Fleet fleet;
  Churn churn(&fleet, kThreads, kIds, TestSeed());
  for (int round = 0; round < 3; ++round) {
    fleet.RestartRegistryEmpty();
    churn.Go(kSomeIntents);
  }
  churn.Stop();
  EXPECT_TRUE(fleet.Converged());
}

TEST(OutageFaultTest, RegistryRestoredFromABackup) {
  Fleet fleet;
  BeginWith(&fleet);
  fleet.BackUpStore();
  const auto before = fleet.watcher().Newest();
  ASSERT_TRUE(before.has_value());
  fleet.Unregister("i-1");
  fleet.Unregister("i-2");
  fleet.Register("i-4", 4444);
  fleet.Register("later");
  ASSERT_TRUE(fleet.Converged());

  fleet.KillRegistry();
  ChangeIntents(&fleet);
  fleet.RestoreStore();
  fleet.StartRegistry();
  EXPECT_TRUE(fleet.Converged());
  const auto after = fleet.watcher().Newest();
  ASSERT_TRUE(after.has_value());
  EXPECT_NE(after->epoch, before->epoch) << "a restored store has gone back within its epoch";
}

TEST(OutageFaultTest, FlappingRegistry) {
  // The whole minute, a flap a second, on demand (./dev fuzz faults).
  const bool whole = std::getenv("FAILBACK_FAULT_LONG") != nullptr;
  Fleet fleet;
  fleet.RegisterMany(50);
  Churn churn(&fleet, kThreads, kIds, TestSeed());
  const auto some_time = [&] {
    if (whole) {
      absl::SleepFor(absl::Milliseconds(500));  // time is the fault: a flap a second
    } else {
      churn.Go(kSomeIntents / 2);
    }
  };
  for (int flap = 0; flap < (whole ? 60 : 15); ++flap) {
    fleet.KillRegistry();
    some_time();
    fleet.StartRegistry();
    some_time();
  }
  churn.Stop();
  EXPECT_TRUE(fleet.Converged());
}

}  // namespace
}  // namespace failback
