// Which agents are counted among those that renew at a registry on etcd, and for how long.
#include "registry/etcd/renewing_agents.h"

#include "gtest/gtest.h"
#include "registry/base/proto_time.h"
#include "retry/simulated_clock.h"

namespace failback::etcd {
namespace {

class RenewingAgentsTest : public testing::Test {
 protected:
  RenewingAgentsTest() {
    session_.id = "session";
    session_.incarnation = "incarnation";
    session_.ttl_ms = 10000;
    report_.mutable_report()->set_intents(3);
  }

  SimulatedClock clock_;
  RenewingAgents agents_{&clock_};
  Session session_;
  KeepAliveRequest report_;
};

TEST_F(RenewingAgentsTest, RenewedWithAReport_IsThereUntilItsTtlHasPassed) {
  agents_.Renewed(session_, report_);
  clock_.Advance(absl::Seconds(4));
  const auto agents = agents_.All();
  ASSERT_EQ(agents.size(), 1U);
  EXPECT_EQ(agents[0].session().incarnation(), "incarnation");
  EXPECT_EQ(FromProto(agents[0].session().expire_time()), clock_.WallNow() + absl::Seconds(6));
  EXPECT_EQ(FromProto(agents[0].report_time()), clock_.WallNow() - absl::Seconds(4));
  clock_.Advance(absl::Seconds(7));
  EXPECT_TRUE(agents_.All().empty());
}

TEST_F(RenewingAgentsTest, RenewedWithoutAReport_IsThereIfItHasReportedBefore) {
  agents_.Renewed(session_, KeepAliveRequest());
  EXPECT_TRUE(agents_.All().empty());
  agents_.Renewed(session_, report_);
  clock_.Advance(absl::Seconds(9));
  agents_.Renewed(session_, KeepAliveRequest());
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(agents_.All().size(), 1U);
}

TEST_F(RenewingAgentsTest, NotRenewedForTwoTtls_IsForgottenByTheSweep) {
  agents_.Renewed(session_, report_);
  clock_.Advance(absl::Seconds(19));
  agents_.Sweep();
  // Its report is still known: it renews with none.
  agents_.Renewed(session_, KeepAliveRequest());
  EXPECT_EQ(agents_.All().size(), 1U);
  clock_.Advance(absl::Seconds(21));
  agents_.Sweep();
  agents_.Renewed(session_, KeepAliveRequest());
  EXPECT_TRUE(agents_.All().empty());
}

}  // namespace
}  // namespace failback::etcd
