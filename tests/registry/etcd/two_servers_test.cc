// Two failback-registry over one etcd, interchangeable: real processes.

#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"
#include "tests/util/eventually.h"
#include "tests/util/http_client.h"
#include "tests/util/ports.h"

namespace failback {
namespace {

// Modify revisions by instance id.
std::map<std::string, uint64_t> Revisions(EtcdHarness& judge) {
  std::map<std::string, uint64_t> revisions;
  for (const auto& record : judge.List("s")) {
    revisions[record.instance().key().instance_id()] = record.modify_revision();
  }
  return revisions;
}

TEST(TwoServersTest, AgentsFailOverWithoutAGapAndWithoutWritingAnythingAgain) {
  EtcdCluster etcd(EtcdCluster::Options{});
  const std::string prefix = "/two";
  const std::string store = etcd.Uri(prefix);
  // Sockets, so that a server that starts again is where it was.
  const TempDir dir;
  const auto start = [&](int server) {
    return Daemon::Registry({"--store", store, "--listen",
                             absl::StrCat("unix:", dir.File(absl::StrCat(server, ".sock")))});
  };
  std::vector<Daemon> servers;
  servers.push_back(start(0));
  servers.push_back(start(1));
  Daemon agent =
      Daemon::Agent(absl::StrCat("grpc://", servers[0].address(), ",", servers[1].address()),
                    {"--session-ttl", "4s"});
  std::vector<std::string> ids;
  for (int i = 0; i < 12; ++i) {
    ids.push_back(absl::StrCat("i", 10 + i));
    ASSERT_EQ(Ctl(agent.address(), {"register", "s", "--id", ids.back(), "--address", "127.0.0.1",
                                    "--port", "1", "--wait", "acknowledged"})
                  .status,
              0);
  }
  // What was registered through one is seen through the other.
  EXPECT_EQ(ListedIds(servers[0].address(), "s"), ids);
  EXPECT_EQ(ListedIds(servers[1].address(), "s"), ids);

  EtcdHarness judge(etcd, prefix);
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = judge.Subscribe(subscriber, "s");
  ASSERT_TRUE(Eventually([&] { return subscriber->ids() == ids; }));
  const std::map<std::string, uint64_t> before = Revisions(judge);

  for (int victim = 0; victim < 2; ++victim) {
    servers[static_cast<size_t>(victim)].Kill();
    // The agent works on, through the other.
    ids.push_back(absl::StrCat("j", victim));
    ASSERT_EQ(Ctl(agent.address(), {"register", "s", "--id", ids.back(), "--address", "127.0.0.1",
                                    "--port", "1", "--wait", "acknowledged"})
                  .status,
              0);
    ASSERT_TRUE(Eventually([&] { return subscriber->ids() == ids; }));
    // Beyond a TTL: the session is renewed through the other server.
    const std::string short_lived =
        judge.Session(absl::StrCat("witness", victim), absl::Seconds(5));
    ASSERT_TRUE(judge.Register(short_lived, MakeInstance("w", "1"), 1).ok());
    ASSERT_TRUE(Eventually([&] { return judge.Ids("w").empty(); }));
    if (victim == 0) {
      servers[0] = start(0);
    }
  }
  // A snapshot and the two new ones: no instance ever left the list.
  for (const auto& event : subscriber->events()) {
    EXPECT_EQ(event->delta().removals_size(), 0) << event->ShortDebugString();
  }
  const std::map<std::string, uint64_t> after = Revisions(judge);
  for (const auto& [id, revision] : before) {
    EXPECT_EQ(after.at(id), revision) << id << " was written again";
  }
}

// A client of HTTP may go to any of them, as with gRPC.
TEST(TwoServersTest, WhatIsPutThroughOneFrontDoorIsReadRenewedAndRemovedThroughTheOther) {
  EtcdCluster etcd(EtcdCluster::Options{});
  const std::string http[] = {ReservedAddress(), ReservedAddress()};
  Daemon one = Daemon::Registry({"--store", etcd.Uri("/doors"), "--http", http[0]});
  Daemon other = Daemon::Registry({"--store", etcd.Uri("/doors"), "--http", http[1]});
  const std::string service = "/v1/services/s";
  const std::string instance = service + "/instances/a";
  const std::string body = R"({"address": "10.0.0.7", "port": 8080})";
  const auto has = [&](const std::string& address) {
    return Http(address, "GET", service).body.find("10.0.0.7") != std::string::npos;
  };
  EXPECT_FALSE(has(http[1]));
  ASSERT_EQ(Http(http[0], "PUT", instance + "?ttl=5s", {}, body).status, 200);
  EXPECT_TRUE(Eventually([&] { return has(http[1]); }));
  // The other knows of no session until the instance is put there; then it is the same one.
  EXPECT_EQ(Http(http[1], "POST", instance + "/renew").status, 404);
  EXPECT_EQ(Http(http[1], "PUT", instance + "?ttl=5s", {}, body).status, 200);
  EXPECT_EQ(Http(http[0], "POST", instance + "/renew").status, 200);
  EXPECT_EQ(Http(http[1], "POST", instance + "/renew").status, 200);
  EXPECT_EQ(Http(http[1], "DELETE", instance).status, 200);
  EXPECT_TRUE(Eventually([&] { return !has(http[0]) && !has(http[1]); }));
  // And what is not renewed expires.
  ASSERT_EQ(Http(http[0], "PUT", instance + "?ttl=5s", {}, body).status, 200);
  EXPECT_TRUE(Eventually([&] { return has(http[1]); }));
  EXPECT_TRUE(Eventually([&] { return !has(http[0]) && !has(http[1]); }));
  EXPECT_EQ(Http(http[0], "POST", instance + "/renew").status, 404);
}

TEST(OneServerTest, TheLogTellsThatEtcdIsAwayAndBack) {
  EtcdCluster etcd(EtcdCluster::Options{});
  etcd.Kill(0);
  Daemon server = Daemon::Registry({"--store", etcd.Uri("/log")});
  // Nobody has called yet.
  const auto away = server.process().WaitForLine("etcd does not answer");
  ASSERT_TRUE(away.has_value()) << server.process().Describe();
  EXPECT_NE(away->find(etcd.endpoints()[0]), std::string::npos) << *away;
  EXPECT_EQ(server.process().err().find("etcd answers again"), std::string::npos);
  etcd.Start(0);
  EXPECT_TRUE(server.process().WaitForLine("etcd answers again").has_value());
  EXPECT_TRUE(ListedIds(server.address(), "s").empty());
  EXPECT_EQ(server.Stop(), 0);
}

// A load balancer's and an orchestrator's probes, while etcd hangs, is killed, and has not been
// there at the start.
TEST(OneServerTest, IsReadyWhileEtcdAnswers) {
  EtcdCluster etcd(EtcdCluster::Options{});
  etcd.Kill(0);
  Daemon server = Daemon::Registry({"--store", etcd.Uri("/ready"), "--admin", "127.0.0.1:0"});
  const auto ready = [&] { return Http(server.admin(), "GET", "/ready"); };
  const std::string service = "failback.registry.v1.RegistryService";
  const auto probes = [&](int status) {
    // The process lives all the same.
    EXPECT_EQ(Ctl(server.address(), {"health"}).status, 0);
    return ready().status == status &&
           (Ctl(server.address(), {"health", service}).status == 0) == (status == 200);
  };
  EXPECT_EQ(ready().status, 503);
  EXPECT_NE(Ctl(server.address(), {"health", service}).status, 0);
  etcd.Start(0);
  ASSERT_TRUE(Eventually([&] { return probes(200); }));

  etcd.Signal(0, SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return probes(503); }));
  EXPECT_NE(ready().body.find("etcd has not answered for 1"), std::string::npos) << ready().body;
  // An operator sees the same, and at once.
  for (const std::string command : {"agents", "sessions"}) {
    const RunResult result = Ctl(server.address(), {command});
    EXPECT_EQ(result.status, 1) << command;
    EXPECT_EQ(result.out, "") << command;
    EXPECT_NE(result.err.find("etcd has not answered for 1"), std::string::npos) << result.err;
  }
  const RunResult status = Ctl(server.address(), {"status"});
  EXPECT_EQ(status.status, 0) << status.err;
  EXPECT_NE(status.out.find("not ready: etcd has not answered for 1"), std::string::npos)
      << status.out;
  etcd.Signal(0, SIGCONT);
  ASSERT_TRUE(Eventually([&] { return probes(200); }));

  etcd.Kill(0);
  ASSERT_TRUE(Eventually([&] { return probes(503); }));
  etcd.Start(0);
  ASSERT_TRUE(Eventually([&] { return probes(200); }));
  EXPECT_EQ(server.Stop(), 0);
}

}  // namespace
}  // namespace failback
