// The failback core on a real etcd of three members: whatever is done to the cluster, afterwards
// the registry holds exactly the last intents, and the subscriber knows them.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "registry/base/proto_time.h"
#include "tests/registry/etcd/etcd_world.h"

namespace failback {
namespace {

class EtcdFaultTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EtcdCluster::Options options;
    options.members = 3;
    options.arguments = {"--quota-backend-bytes", "16777216"};
    etcd_ = new EtcdCluster(options);
  }
  static void TearDownTestSuite() {
    delete etcd_;
    etcd_ = nullptr;
  }
  void TearDown() override {
    for (int i = 0; i < etcd().size(); ++i) {
      if (!etcd().running(i)) etcd().Start(i);
    }
    etcd().WaitUntilServing();
  }
  static EtcdCluster& etcd() { return *etcd_; }
  static int AFollower() {
    const int leader = etcd().WaitForLeader();
    return (leader + 1) % etcd().size();
  }

 private:
  static EtcdCluster* etcd_;
};

EtcdCluster* EtcdFaultTest::etcd_ = nullptr;

TEST_F(EtcdFaultTest, LeaderKilled) {
  EtcdWorld world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  etcd().Kill(etcd().WaitForLeader());
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, FollowerKilled) {
  EtcdWorld world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  etcd().Kill(AFollower());
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, MemberAfterMemberKilledInTheMiddleOfEverything) {
  EtcdWorld world(etcd());
  world.RegisterMany(40);
  for (int member = 0; member < etcd().size(); ++member) {
    world.Churn();
    etcd().Kill(member);
    world.Churn();
    world.ExpectLastIntents();
    etcd().Start(member);
    etcd().WaitUntilServing();
  }
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, AllKilledAndRestarted) {
  EtcdWorld world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  for (int i = 0; i < etcd().size(); ++i) etcd().Kill(i);
  world.Churn();
  for (int i = 0; i < etcd().size(); ++i) etcd().Start(i);
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, AConnectionThatBreaksWhileNothingIsAskedIsTold) {
  const auto timer = NewTimer(kTestTick);
  EtcdRegistry registry(EtcdTestOptions(etcd(), NewPrefix(), timer.get()));
  std::atomic<int> breaks{0};
  registry.SetDisconnectListener([&](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    ++breaks;
  });
  OpenSessionRequest open;
  open.set_incarnation("idle");
  *open.mutable_ttl() = ToProto(absl::Minutes(10));  // no renewal comes to tell instead
  const auto session = CallAndWait<OpenSessionResponse>(registry, &Registry::OpenSession, open);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(breaks, 0);
  for (int i = 0; i < etcd().size(); ++i) etcd().Kill(i);
  EXPECT_TRUE(Eventually([&] { return breaks > 0; }));
  // Once it is back the same session goes on, and the next break is reported too.
  for (int i = 0; i < etcd().size(); ++i) etcd().Start(i);
  etcd().WaitUntilServing();
  const auto again = CallAndWait<OpenSessionResponse>(registry, &Registry::OpenSession, open);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->session_id(), session->session_id());
  const int before = breaks;
  for (int i = 0; i < etcd().size(); ++i) etcd().Kill(i);
  EXPECT_TRUE(Eventually([&] { return breaks > before; }));
}

TEST_F(EtcdFaultTest, MemberStoppedForLongerThanTheTtl) {
  EtcdWorld world(etcd(), absl::Seconds(1));
  world.RegisterMany(40);
  world.ExpectLastIntents();
  const int stopped = etcd().WaitForLeader();
  etcd().Signal(stopped, SIGSTOP);
  world.Churn();
  // The session is renewed at another member: a lease of one that is not renewed ends meanwhile.
  const std::string witness = world.judge().Session("witness", absl::Seconds(5));
  EXPECT_TRUE(world.judge().Register(witness, MakeInstance("w", "1"), 1).ok());
  EXPECT_TRUE(Eventually([&] { return world.judge().Ids("w").empty(); }));
  world.ExpectLastIntents();
  etcd().Signal(stopped, SIGCONT);
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, CompactionInTheMiddleOfAWatch) {
  EtcdWorld world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  // Those who follow are away, what they have missed is compacted when they come again.
  for (int i = 0; i < etcd().size(); ++i) etcd().Kill(i);
  for (int i = 0; i < etcd().size(); ++i) etcd().Start(i);
  etcd().WaitUntilServing();
  world.Churn();
  for (int round = 0; round < 5; ++round) {
    const auto revision = etcd().Put("/elsewhere", "x");
    ASSERT_TRUE(revision.ok()) << revision.status();
    EXPECT_EQ(etcd().Ctl({"compact", "--physical", absl::StrCat(*revision)}).status, 0);
    world.Churn();
  }
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, LeaseRevokedByAnotherHand) {
  EtcdWorld world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  // Every lease that has instances of this test.
  std::set<std::string> leases;
  const RunResult keys =
      etcd().Ctl({"get", "--prefix", world.prefix() + "/v1/default/", "-w", "fields"});
  for (const auto line : absl::StrSplit(keys.out, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, " : ");
    if (parts.size() == 2 && parts[0] == "\"Lease\"" && parts[1] != "0") leases.insert(parts[1]);
  }
  ASSERT_FALSE(leases.empty());
  for (const std::string& lease : leases) {
    EXPECT_EQ(etcd().Ctl({"lease", "revoke", absl::StrCat(absl::Hex(std::stoll(lease)))}).status,
              0);
  }
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, KeysDeletedAndOverwrittenByAnotherHand) {
  EtcdWorld world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  const std::string key = world.prefix() + "/v1/default/s/i";
  EXPECT_EQ(etcd().Ctl({"del", key + "1"}).status, 0);
  EXPECT_EQ(etcd().Ctl({"put", key + "2", "rubbish"}).status, 0);
  EXPECT_EQ(etcd().Ctl({"put", key + "3", ""}).status, 0);
  EXPECT_EQ(etcd().Ctl({"del", "--prefix", key + "2"}).status, 0);
  world.ExpectLastIntents();
  // All there is, the sessions and the store's name included.
  EXPECT_EQ(etcd().Ctl({"del", "--prefix", world.prefix() + "/"}).status, 0);
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, QuotaAlarm) {
  EtcdWorld world(etcd());
  world.RegisterMany(20);
  world.ExpectLastIntents();
  // Fill the quota of 16 MiB.
  const std::string big(1 << 20, 'x');
  int64_t revision = 0;
  for (int i = 0; i < 40; ++i) {
    const auto put = etcd().Put("/filler", big);
    if (!put.ok()) break;
    revision = *put;
  }
  ASSERT_NE(etcd().Ctl({"alarm", "list"}).out, "") << "the quota was not reached";
  world.Churn();
  // Writes are refused with a typed reason; reads go on.
  EXPECT_TRUE(Eventually([&] {
    const auto pending = world.agent().Pending();
    return std::any_of(pending.begin(), pending.end(), [](const auto& operation) {
      return ReasonOf(StatusFromProto(operation.last_status())) ==
             registry::v1::ERROR_REASON_STORE_READ_ONLY;
    });
  }));
  EXPECT_FALSE(world.judge().List("s").empty());
  // An operator makes room.
  EXPECT_EQ(etcd().Ctl({"compact", "--physical", absl::StrCat(revision)}).status, 0);
  EXPECT_EQ(etcd().Ctl({"defrag"}).status, 0);
  EXPECT_EQ(etcd().Ctl({"alarm", "disarm"}).status, 0);
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, AnEpochEndsWhenItIsToldTo) {
  EtcdWorld world(etcd());
  world.RegisterMany(20);
  world.ExpectLastIntents();
  const uint64_t epoch = world.judge()->Stats().epoch;
  ASSERT_EQ(etcd().Ctl({"put", world.prefix() + "/v1/.epoch", "restored"}).status, 0);
  world.Churn();
  world.ExpectLastIntents();
  EXPECT_NE(world.judge()->Stats().epoch, epoch);
}

}  // namespace
}  // namespace failback
