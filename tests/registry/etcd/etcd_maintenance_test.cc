// What the people who run etcd do to it while registries work: defragmentation, a restore from a
// snapshot, authentication that is switched on.

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "tests/registry/etcd/etcd_world.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

EtcdCluster::Options ThreeMembers() {
  EtcdCluster::Options options;
  options.members = 3;
  return options;
}

// A member answers nothing while it is defragmented: others do, and what was begun is done again.
TEST(EtcdMaintenanceTest, DefragmentationLosesNothing) {
  EtcdCluster etcd(ThreeMembers());
  const std::string big(1 << 20, 'x');
  for (int i = 0; i < 64; ++i) {
    const auto put = etcd.Put(absl::StrCat("/filler", i), big);
    ASSERT_TRUE(put.ok()) << put.status();
  }
  EtcdWorld world(etcd);
  world.RegisterMany(40);
  world.ExpectLastIntents();
  std::atomic<bool> over{false};
  RunResult defragmented;
  std::thread defragment([&] {
    defragmented = etcd.Ctl({"defrag"});  // one member after the other
    over = true;
  });
  std::set<absl::StatusCode> met;
  int rounds = 0;
  do {
    world.Churn();
    ++rounds;
    for (const auto& operation : world.agent().Pending()) {
      met.insert(StatusFromProto(operation.last_status()).code());
    }
    // The next intents when these are on their way, or late.
    Eventually([&] { return world.agent().Pending().empty(); }, absl::Milliseconds(50));
  } while (!over);
  defragment.join();
  EXPECT_EQ(defragmented.status, 0) << defragmented.err;
  EXPECT_GT(rounds, 0);
  for (const absl::StatusCode code : met) {
    EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kUnavailable) << code;
  }
  world.ExpectLastIntents();
}

class EtcdRestoreTest : public testing::TestWithParam<const char*> {};

// What was registered after the snapshot is registered again; what was unregistered after it, and
// is in it, goes again.
TEST_P(EtcdRestoreTest, ARestoredClusterHasTheLastIntentsSoonAndNothingElse) {
  EtcdCluster etcd(ThreeMembers());
  const TempDir dir;
  EtcdWorld world(etcd);
  world.RegisterMany(40);
  world.ExpectLastIntents();
  etcd.Save(dir.File("snapshot.db"));
  for (int i = 0; i < 10; ++i) world.Unregister(absl::StrCat("i", i));
  for (int i = 20; i < 30; ++i) world.Register(absl::StrCat("i", i), 2000);
  for (int i = 0; i < 10; ++i) world.Register(absl::StrCat("new", i), 3000);
  world.ExpectLastIntents();
  const uint64_t epoch = world.judge()->Stats().epoch;
  ASSERT_NE(epoch, 0u);
  etcd.Restore(dir.File("snapshot.db"), GetParam());
  world.ExpectLastIntents();
  EXPECT_NE(world.judge()->Stats().epoch, epoch);
  // And it stays so: what follows is as ever.
  world.Churn();
  world.ExpectLastIntents();
}

INSTANTIATE_TEST_SUITE_P(, EtcdRestoreTest, testing::Values("", "another-cluster"),
                         [](const auto& info) {
                           return *info.param == '\0' ? "TheSameCluster" : "AnotherCluster";
                         });

TEST(EtcdMaintenanceTest, AuthenticationSwitchedOnWhileRegistriesServe) {
  EtcdCluster etcd(EtcdCluster::Options{});
  const std::vector<std::vector<std::string>> setup = {
      {"user", "add", "root:root"},
      {"user", "grant-role", "root", "root"},
      {"user", "add", "failback:right"},
      {"role", "add", "failback"},
      {"role", "grant-permission", "failback", "--prefix=true", "readwrite", "/mine/"},
      {"user", "grant-role", "failback", "failback"},
  };
  for (const auto& command : setup) ASSERT_EQ(etcd.Ctl(command).status, 0);
  const TempDir dir;
  const std::string password = dir.Write("password", "right\n");
  const Daemon with_user = Daemon::Registry(
      {"--store", absl::StrCat(etcd.Uri("/mine"), "?user=failback&password_file=", password)});
  const Daemon without = Daemon::Registry({"--store", etcd.Uri("/mine")});
  const auto add = [](const Daemon& server, const std::string& id) {
    return Ctl(server.address(), {"register", "s", "--id", id, "--address", "127.0.0.1", "--port",
                                  "1", "--persistent"});
  };
  ASSERT_EQ(add(with_user, "1").status, 0);
  ASSERT_EQ(add(without, "2").status, 0);
  Daemon agent = Daemon::Agent(with_user.address(), {"--session-ttl", "3s"});
  const auto agent_adds = [&](const std::string& id) {
    return Ctl(agent.address(), {"register", "s", "--id", id, "--address", "127.0.0.1", "--port",
                                 "1", "--wait", "acknowledged"});
  };
  ASSERT_EQ(agent_adds("3").status, 0);

  ASSERT_EQ(etcd.Ctl({"--user", "root:root", "auth", "enable"}).status, 0);

  EXPECT_EQ(agent_adds("4").status, 0);
  EXPECT_EQ(add(with_user, "5").status, 0);
  EXPECT_EQ(ListedIds(with_user.address(), "s"),
            (std::vector<std::string>{"1", "2", "3", "4", "5"}));
  for (const RunResult& refused : {add(without, "6"), Ctl(without.address(), {"list", "s"})}) {
    EXPECT_NE(refused.status, 0);
    EXPECT_TRUE(absl::StrContains(refused.err, "UNAUTHENTICATED")) << refused.err;
    EXPECT_TRUE(absl::StrContains(refused.err, "etcd: ")) << refused.err;
    EXPECT_TRUE(absl::StrContains(refused.err, "name user and password_file")) << refused.err;
  }
  // Switched off again it serves as before.
  ASSERT_EQ(etcd.Ctl({"--user", "root:root", "auth", "disable"}).status, 0);
  EXPECT_TRUE(Eventually([&] { return add(without, "6").status == 0; }));
}

}  // namespace
}  // namespace failback
