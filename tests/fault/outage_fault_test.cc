// The registry dies, stops, comes back as another: real daemons, real signals.

#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/fault/fleet.h"

namespace failback {
namespace {

TEST(OutageFaultTest, KilledRegistry) {
  Fleet fleet;
  fleet.RegisterMany(20);
  fleet.Register("leaves");
  ASSERT_TRUE(fleet.Converged());

  fleet.KillRegistry();
  fleet.Unregister("leaves");
  fleet.Register("joins");
  fleet.Register("i-3", 9090);  // an update
  fleet.Register("flickers");
  fleet.Unregister("flickers");
  ASSERT_TRUE(fleet.WaitForUpstream(agent::v1::UPSTREAM_STATE_CONNECTING));
  fleet.StartRegistry();
  EXPECT_TRUE(fleet.Converged());
}

TEST(OutageFaultTest, RegistryStoppedForLessThanTheTtl) {
  Fleet::Options options;
  options.ttl = absl::Seconds(3);
  Fleet fleet(options);
  fleet.RegisterMany(20);
  fleet.Register("leaves");
  ASSERT_TRUE(fleet.Converged());

  fleet.PauseRegistry();
  fleet.Unregister("leaves");
  fleet.Register("joins");
  absl::SleepFor(absl::Seconds(1));
  fleet.ContinueRegistry();
  EXPECT_TRUE(fleet.Converged());
}

TEST(OutageFaultTest, RegistryRestartedEmpty) {
  Fleet fleet;
  fleet.RegisterMany(20);
  fleet.Register("leaves");
  ASSERT_TRUE(fleet.Converged());
  fleet.Unregister("leaves");
  fleet.RestartRegistryEmpty();
  fleet.Register("joins");
  EXPECT_TRUE(fleet.Converged());
}

}  // namespace
}  // namespace failback
