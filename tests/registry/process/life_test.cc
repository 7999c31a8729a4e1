// How a registry stops and starts again, as its clients see it.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/process/registry_client.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
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

// A local client's death shows in its broken stream, also to a registry that has started since.
TEST_F(LifeTest, AfterARestartASessionStillEndsWithItsStream) {
  Start();
  RegistryClient watcher(daemon_->address());
  std::string session_id;
  {
    GrpcRegistry opener({daemon_->address()}, GrpcRegistryOptions());
    OpenSessionRequest open;
    open.set_incarnation("local");
    open.mutable_ttl()->set_seconds(3600);
    open.set_ends_with_stream(true);
    const auto session = CallAndWait(opener, &Registry::OpenSession, open);
    ASSERT_TRUE(session.ok()) << session.status();
    session_id = session->session_id();
    ASSERT_TRUE(watcher.Register(session_id, {MakeInstance("orders", "1")}, 1).ok());
    // Killed, so that the stream's end is the registry's and not the client's.
    daemon_->Kill();
  }
  Start();
  {
    // It does not open the session again, as nothing has told it to.
    RegistryClient client(daemon_->address());
    ASSERT_TRUE(Eventually([&] { return client.KeepAlive(session_id).ok(); }));
    EXPECT_THAT(watcher.Ids("orders"), ElementsAre("1"));
  }
  EXPECT_TRUE(Eventually([&] { return watcher.Ids("orders").empty(); }));
}

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
  // The subscriber goes on where it was: nothing has changed, and the event says so.
  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  request.set_epoch(subscriber->epoch());
  request.set_revision(subscriber->revision());
  subscriber->BeginAgain();
  stream = (*client).Subscribe(request, subscriber);
  ASSERT_TRUE(Eventually([&] { return subscriber->events().size() == 1; }));
  EXPECT_TRUE(subscriber->events()[0]->has_delta());
}

// A caller gets, while it stops, an error that it can go on from, and what was answered as
// registered is.
TEST_F(LifeTest, AGracefulStopAnswersWhoIsCalling) {
  constexpr int kCallers = 6;
  struct Caller {
    std::string session;
    uint64_t acknowledged = 0;  // generation
    absl::Status end;
  };
  Start();
  int told = 0;
  for (int round = 0; round < 3; ++round) {
    std::vector<Caller> callers(kCallers);
    std::atomic<int> calls = 0;
    std::atomic<int> begun = 0;  // callers that have registered
    std::vector<std::thread> threads;
    threads.reserve(kCallers);
    for (int i = 0; i < kCallers; ++i) {
      threads.emplace_back([&, i] {
        RegistryClient client(daemon_->address());
        Caller& caller = callers[i];
        const auto session = client.Open(absl::StrCat(round, "-", i), absl::Hours(1));
        ASSERT_TRUE(session.ok()) << session.status();
        caller.session = session->session_id();
        while (caller.end.ok()) {
          const auto instance = MakeInstance(absl::StrCat("orders-", round), absl::StrCat(i));
          caller.end =
              client.Register(caller.session, {instance}, caller.acknowledged + 1).status();
          if (caller.end.ok() && ++caller.acknowledged == 1) ++begun;
          ++calls;
        }
      });
    }
    EXPECT_TRUE(Eventually([&] { return begun == kCallers && calls > 50 * kCallers; }));
    EXPECT_EQ(daemon_->Stop(), 0);
    for (auto& thread : threads) thread.join();

    Start();
    RegistryClient client(daemon_->address());
    const auto records = client.List(absl::StrCat("orders-", round));
    ASSERT_TRUE(records.ok()) << records.status();
    ASSERT_THAT(*records, SizeIs(kCallers));
    for (int i = 0; i < kCallers; ++i) {
      // SHUTTING_DOWN, but for one that was slow: gRPC's word to it is its own.
      if (ReasonOf(callers[i].end) == registry::v1::ERROR_REASON_SHUTTING_DOWN) ++told;
      EXPECT_THAT(callers[i].end.code(),
                  AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kCancelled))
          << callers[i].end;
      // The last one may have been carried out, and not told.
      EXPECT_GE((*records)[i].generation(), callers[i].acknowledged);
      EXPECT_LE((*records)[i].generation(), callers[i].acknowledged + 1);
      EXPECT_TRUE(client.KeepAlive(callers[i].session).ok());
    }
  }
  std::cout << told << " of " << 3 * kCallers << " were told why" << std::endl;
  EXPECT_GT(told, 0);
}

// Through an agent: the registry is stopped and killed while registrations come in, and nobody is
// ever told an empty list.
TEST_F(LifeTest, RestartsUnderLoadPushNoEmptyListToAnyone) {
  Start();
  RegistryClient filler(daemon_->address());
  const std::string session = filler.Open("filler", absl::Hours(1))->session_id();
  std::vector<ServiceInstance> many;
  many.reserve(200);
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
    std::vector<std::string> args = {"--store", "memory:", "--admin", "127.0.0.1:0"};
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
    EXPECT_TRUE(daemons[i].process().WaitForLine("too many sessions would expire at once"));
    EXPECT_THAT(Http(daemons[i].admin(), "GET", "/metrics").body,
                AllOf(HasSubstr("\nfailback_registry_sessions_held 3\n"),
                      HasSubstr("\nfailback_registry_eviction_guard_active 1\n")));
  }
}

}  // namespace
}  // namespace failback
