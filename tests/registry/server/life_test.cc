// How a registry stops and starts again, as its clients see it.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/server/registry_client.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class LifeTest : public ::testing::Test {
 protected:
  // At the address of the first start.
  void Start() {
    std::vector<std::string> args = {"--store", "sqlite://" + dir_.File("registry.db")};
    if (daemon_ != nullptr) args.insert(args.end(), {"--listen", daemon_->address()});
    daemon_ = std::make_unique<Daemon>(Daemon::Registry(args));
  }

  const TempDir dir_;
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(LifeTest, AGracefulStopTellsSubscribersToGoElsewhereAndKeepsSessions) {
  Start();
  RegistryClient client(daemon_->address());
  const auto session = client.Open("a");
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(client.KeepAlive(session->session_id()).ok());
  ASSERT_TRUE(client.Register(session->session_id(), {MakeInstance("orders", "1")}, 1).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  auto stream = client.Subscribe(subscriber, "orders");
  ASSERT_TRUE(Eventually([&] { return subscriber->events().size() == 1; }));

  EXPECT_EQ(daemon_->Stop(), 0);
  ASSERT_TRUE(Eventually([&] { return subscriber->ended().has_value(); }));
  EXPECT_EQ(ReasonOf(*subscriber->ended()), registry::v1::ERROR_REASON_SHUTTING_DOWN)
      << *subscriber->ended();
  EXPECT_THAT(subscriber->ids(), ElementsAre("1")) << "nothing was taken away";

  Start();
  EXPECT_TRUE(Eventually([&] { return client.KeepAlive(session->session_id()).ok(); }));
  const auto resumed = client.Open("a");
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_TRUE(resumed->resumed());
  EXPECT_EQ(resumed->session_id(), session->session_id());
  EXPECT_EQ(resumed->epoch(), session->epoch());
  EXPECT_THAT(client.Ids("orders"), ElementsAre("1"));
  // The subscriber goes on where it was: nothing has changed, and so it is told.
  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  request.set_epoch(subscriber->epoch());
  request.set_revision(subscriber->revision());
  subscriber->BeginAgain();
  stream = (*client).Subscribe(request, subscriber);
  ASSERT_TRUE(Eventually([&] { return subscriber->events().size() == 1; }));
  EXPECT_TRUE(subscriber->events()[0]->has_delta());
}

// Through an agent: the registry is stopped and killed while registrations come in, and nobody is
// ever told an empty list.
TEST_F(LifeTest, RestartsUnderLoadPushNoEmptyListToAnyone) {
  Start();
  RegistryClient filler(daemon_->address());
  const std::string session = filler.Open("filler", absl::Hours(1))->session_id();
  std::vector<ServiceInstance> many;
  for (int i = 0; i < 200; ++i) many.push_back(MakeInstance("orders", absl::StrCat("base-", i)));
  ASSERT_TRUE(filler.Register(session, many, 1).ok());
  Daemon agent = Daemon::Agent(daemon_->address(), {"--listen", "unix:" + dir_.File("agent.sock")});
  auto listener = Process::Start(
      {CtlBinary(), "--target", agent.address(), "subscribe", "orders", "-o", "json"});
  ASSERT_TRUE(listener->WaitForOutput([](const std::string& out) { return !out.empty(); }));
  RegistryClient busy(agent.address());
  int registered = 0;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(
          busy.Register("", {MakeInstance("orders", absl::StrCat("more-", registered++))}).ok());
      if (i != 10) continue;
      if (round % 2 == 0) {
        EXPECT_EQ(daemon_->Stop(), 0);
      } else {
        daemon_->Kill();
      }
    }
    Start();
    RegistryClient fresh(daemon_->address());
    EXPECT_GE(fresh.Ids("orders").size(), 200u) << "the first answer has everything";
  }
  const size_t all = 200 + registered;
  RegistryClient client(daemon_->address());
  EXPECT_TRUE(Eventually([&] { return client.Ids("orders").size() == all; }));

  const auto sizes = [&] {
    std::vector<size_t> sizes;
    std::map<std::string, int> present;
    for (const auto& event : ParseEvents(listener->out())) {
      if (event.has_snapshot()) present.clear();
      for (const auto& instance : event.snapshot().instances()) {
        present[instance.key().instance_id()] = 1;
      }
      for (const auto& instance : event.delta().upserts()) {
        present[instance.key().instance_id()] = 1;
      }
      for (const auto& key : event.delta().removals()) present.erase(key.instance_id());
      if (!event.snapshot().more()) sizes.push_back(present.size());
    }
    return sizes;
  };
  EXPECT_TRUE(Eventually([&] { return sizes().back() == all; }));
  for (const size_t size : sizes()) EXPECT_GE(size, 200u);
}

// An agent that has lost its connection states its intents again; the registry finds that it has
// them.
TEST_F(LifeTest, AnAgentResumesItsSessionAndChangesNothing) {
  Start();
  Daemon agent = Daemon::Agent(daemon_->address(), {"--listen", "unix:" + dir_.File("agent.sock")});
  const auto add = [&](const std::string& id) {
    const RunResult result = Ctl(agent.address(), {"register", "orders", "--id", id, "--address",
                                                   "h", "--port", "1", "--wait", "acknowledged"});
    ASSERT_EQ(result.status, 0) << result.err;
  };
  for (const char* id : {"1", "2", "3"}) add(id);
  RegistryClient client(daemon_->address());
  const auto before = client.List("orders");
  ASSERT_TRUE(before.ok()) << before.status();
  const uint64_t revision = client.revision();
  daemon_->Kill();
  Start();
  add("4");  // after all that was stated before
  EXPECT_TRUE(Eventually([&] { return PendingAt(agent.address()).empty(); }));
  const auto after = client.List("orders");
  ASSERT_TRUE(after.ok()) << after.status();
  ASSERT_THAT(*after, SizeIs(4));
  for (size_t i = 0; i < before->size(); ++i) {
    EXPECT_EQ((*after)[i].SerializeAsString(), (*before)[i].SerializeAsString());
  }
  EXPECT_EQ(client.revision(), revision + 1) << "the new one, and nothing else";
  EXPECT_THAT(Ctl(daemon_->address(), {"status"}).out, HasSubstr("1, 0 expired"));
}

// Three sessions whose clients have gone, at registries that differ in what they hold back. The TTL
// is what opening all three may take.
TEST(EvictionGuardTest, IsAsConfigured) {
  struct Case {
    std::vector<std::string> args;
    bool holds;
  };
  const Case cases[] = {
      {{"--eviction-guard-min-sessions", "3"}, true},
      {{"--eviction-guard-min-sessions", "3", "--eviction-guard-share", "0.99"}, true},
      {{"--eviction-guard-min-sessions", "3", "--eviction-guard-share", "1"}, false},
      {{"--eviction-guard-min-sessions", "4"}, false},
      {{"--eviction-guard-min-sessions", "3", "--eviction-guard-enabled", "false"}, false},
  };
  std::vector<Daemon> daemons;
  for (const Case& each : cases) {
    std::vector<std::string> args = {"--store", "memory:"};
    args.insert(args.end(), each.args.begin(), each.args.end());
    daemons.push_back(Daemon::Registry(args));
    RegistryClient client(daemons.back().address());
    for (const char* name : {"a", "b", "c"}) {
      const auto session = client.Open(name, absl::Seconds(4));
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_TRUE(client.Register(session->session_id(), {MakeInstance("orders", name)}).ok());
    }
  }
  for (size_t i = 0; i < daemons.size(); ++i) {
    SCOPED_TRACE(absl::StrJoin(cases[i].args, " "));
    RegistryClient client(daemons[i].address());
    if (!cases[i].holds) {
      EXPECT_TRUE(Eventually([&] { return client.Ids("orders").empty(); }));
      continue;
    }
    const auto status = [&] { return Ctl(daemons[i].address(), {"status"}).out; };
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(status(), "3 held back"); })) << status();
    EXPECT_THAT(client.Ids("orders"), SizeIs(3));
  }
}

}  // namespace
}  // namespace failback
