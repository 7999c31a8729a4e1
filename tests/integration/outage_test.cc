// The main job on real processes: services stay registered through whatever happens to the
// registry.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/instances.h"
#include "tests/util/observed_states.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using agent::v1::PendingOperation;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OutageTest : public ::testing::Test {
 protected:
  std::string Store() const { return "sqlite://" + dir_.File("registry.db"); }

  // Both at the addresses of the first start, so that others find them again.
  void StartRegistry(const std::string& store) {
    std::vector<std::string> args = {"--store", store};
    if (!registry_address_.empty()) args.insert(args.end(), {"--listen", registry_address_});
    registry_ = std::make_unique<Daemon>(Daemon::Registry(args));
    registry_address_ = registry_->address();
  }

  Daemon StartAgent(const std::string& name, std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--listen", "unix:" + dir_.File(name + ".sock")});
    return Daemon::Agent(registry_address_, args);
  }

  std::unique_ptr<Process> Subscribe(const std::string& target, size_t events) {
    auto subscriber =
        Process::Start({CtlBinary(), "--target", target, "subscribe", "orders", "-o", "json"});
    EXPECT_TRUE(subscriber->WaitForOutput([events](const std::string& out) {
      return ParseEvents(out).size() >= events;
    })) << subscriber->Describe();
    return subscriber;
  }

  void Register(const std::string& target, const std::string& id, int port,
                const std::string& wait = "accepted") {
    const RunResult result = Ctl(target, {"register", "orders", "--id", id, "--address", "10.0.0.1",
                                          "--port", std::to_string(port), "--wait", wait});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "registered default/orders/" + id + ": " + wait + "\n");
    desired_.Registered(MakeInstance("orders", id, port));
  }

  void Unregister(const std::string& target, const std::string& id) {
    const RunResult result = Ctl(target, {"unregister", "orders", "--id", id});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "unregistered default/orders/" + id + ": accepted\n");
    desired_.Unregistered(id);
  }

  // Until target and registry both list exactly `ids`.
  void ExpectListed(const std::string& target, const std::vector<std::string>& ids) {
    EXPECT_TRUE(Eventually([&] {
      return ListedIds(registry_address_, "orders") == ids && ListedIds(target, "orders") == ids;
    })) << registry_->process().Describe()
        << Ctl(registry_address_, {"list"}).out << Ctl(target, {"pending"}).out;
  }

  // Until the subscriber has seen the state with these ids; then all that it has seen is checked.
  void ExpectSeen(Process* subscriber, const std::set<std::string>& ids) {
    EXPECT_TRUE(subscriber->WaitForOutput([&](const std::string& out) {
      ObservedStates observed;
      for (const auto& event : ParseEvents(out)) {
        const absl::Status status = observed.Apply(event);
        EXPECT_TRUE(status.ok()) << status;
        if (!status.ok()) return true;
      }
      return observed.CurrentIds() == ids && !observed.states().back().stale;
    })) << subscriber->Describe();
    const absl::Status status = CheckSubscription(ParseEvents(subscriber->out()), desired_);
    EXPECT_TRUE(status.ok()) << status << "\n" << subscriber->Describe();
  }

  const TempDir dir_;
  std::string registry_address_;
  std::unique_ptr<Daemon> registry_;
  DesiredHistory desired_;
};

TEST_F(OutageTest, IntentsOfAnOutageArriveWhenTheRegistryIsBack) {
  StartRegistry(Store());
  Daemon agent = StartAgent("agent");
  for (const int i : {1, 2, 3}) {
    Register(agent.address(), "o" + std::to_string(i), 8000 + i, "acknowledged");
  }
  auto subscriber = Subscribe(agent.address(), 1);

  registry_->Kill();
  Register(agent.address(), "o4", 8004);
  Register(agent.address(), "o5", 8005);
  Unregister(agent.address(), "o1");

  // All three are shown, each with its attempts, the next one and why the last failed.
  EXPECT_TRUE(Eventually([&] {
    std::vector<std::string> waiting;
    for (const PendingOperation& row : PendingAt(agent.address())) {
      if (row.kind() != agent::v1::OPERATION_KIND_REGISTER &&
          row.kind() != agent::v1::OPERATION_KIND_UNREGISTER) {
        continue;
      }
      if (row.state() == agent::v1::PENDING_STATE_WAITING && row.times() >= 1 &&
          row.has_next_attempt() && row.last_status().code() == 14 && row.retry_times() == -1 &&
          row.upstream() == "grpc://" + registry_address_) {
        waiting.push_back(row.id());
      }
    }
    return waiting == std::vector<std::string>{"register default/orders/o4",
                                               "register default/orders/o5",
                                               "unregister default/orders/o1"};
  })) << Ctl(agent.address(), {"pending"}).out;

  StartRegistry(Store());
  ExpectListed(agent.address(), {"o2", "o3", "o4", "o5"});
  EXPECT_TRUE(Eventually([&] { return PendingAt(agent.address()).empty(); }));
  ExpectSeen(subscriber.get(), {"o2", "o3", "o4", "o5"});
  EXPECT_EQ(agent.Stop(), 0);
  EXPECT_THAT(ListedIds(registry_address_, "orders"), IsEmpty());
  EXPECT_EQ(registry_->Stop(), 0);
}

TEST_F(OutageTest, RegisteredAndUnregisteredDuringAnOutageNeverAppears) {
  StartRegistry(Store());
  Daemon agent = StartAgent("agent");
  Register(agent.address(), "stays", 8001, "acknowledged");
  auto at_registry = Subscribe(agent.address(), 1);
  registry_->Kill();
  Register(agent.address(), "ghost", 8002);
  Unregister(agent.address(), "ghost");
  Register(agent.address(), "last", 8003);
  StartRegistry(Store());
  // Whatever comes of the ghost comes before `last` is seen or not at all.
  auto direct = Subscribe(registry_address_, 1);
  ExpectListed(agent.address(), {"last", "stays"});
  EXPECT_TRUE(Eventually([&] { return PendingAt(agent.address()).empty(); }));
  for (Process* subscriber : {at_registry.get(), direct.get()}) {
    ExpectSeen(subscriber, {"last", "stays"});
    EXPECT_THAT(subscriber->out(), ::testing::Not(HasSubstr("ghost")));
  }
}

TEST_F(OutageTest, AnEmptyRegistryIsFilledAgain) {
  StartRegistry("memory:");
  Daemon agent = StartAgent("agent");
  Register(agent.address(), "o1", 8001, "acknowledged");
  Register(agent.address(), "o2", 8002, "acknowledged");
  auto subscriber = Subscribe(agent.address(), 1);
  registry_->Kill();
  StartRegistry("memory:");
  ExpectListed(agent.address(), {"o1", "o2"});
  ExpectSeen(subscriber.get(), {"o1", "o2"});
}

TEST_F(OutageTest, TheLeaseOfADeadAgentEndsAndItsServicesVanish) {
  StartRegistry(Store());
  Daemon dies = StartAgent("dies", {"--session-ttl", "1s"});
  Daemon lives = StartAgent("lives");
  Register(dies.address(), "dead", 8001, "acknowledged");
  Register(lives.address(), "alive", 8002, "acknowledged");
  ASSERT_EQ(Ctl(dies.address(), {"register", "orders", "--id", "kept", "--address", "h", "--port",
                                 "1", "--persistent", "--wait", "acknowledged"})
                .status,
            0);
  // Where this machine stalls for longer than its TTL it is removed for a moment, and returns.
  ExpectListed(lives.address(), {"alive", "dead", "kept"});
  dies.Kill();
  // A persistent one outlives its session.
  ExpectListed(lives.address(), {"alive", "kept"});
}

TEST_F(OutageTest, ALaterAgentOwnsTheKeyAndTheEarlierCannotTakeItBack) {
  StartRegistry(Store());
  Daemon first = StartAgent("first");
  Daemon second = StartAgent("second");
  Register(first.address(), "o1", 8001, "acknowledged");
  Register(second.address(), "o1", 8002, "acknowledged");
  // The first one's end, and its own unregister, leave the second one's instance alone.
  Unregister(first.address(), "o1");
  EXPECT_EQ(first.Stop(), 0);
  const RunResult list = Ctl(registry_address_, {"list", "orders"});
  EXPECT_THAT(list.out, HasSubstr("10.0.0.1:8002"));
  ExpectListed(second.address(), {"o1"});
}

TEST_F(OutageTest, TheEarlierAgentHasTheKeyAgainWhenTheLaterStops) {
  StartRegistry(Store());
  Daemon first = StartAgent("first", {"--retry-superseded-period", "300ms"});
  Daemon second = StartAgent("second");
  Register(first.address(), "o1", 8001, "acknowledged");
  Register(second.address(), "o1", 8002, "acknowledged");
  // It is refused when it has something to say, and keeps that.
  const RunResult refused =
      Ctl(first.address(), {"register", "orders", "--id", "o1", "--address", "10.0.0.1", "--port",
                            "8003", "--wait", "acknowledged"});
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(Ctl(first.address(), {"pending"}).out, HasSubstr("superseded"));
  EXPECT_THAT(Ctl(registry_address_, {"list", "orders"}).out, HasSubstr("10.0.0.1:8002"));
  EXPECT_EQ(second.Stop(), 0);
  EXPECT_TRUE(
      Eventually([&] { return Ctl(first.address(), {"pending"}).out == "nothing pending\n"; }));
  EXPECT_THAT(Ctl(registry_address_, {"list", "orders"}).out, HasSubstr("10.0.0.1:8003"));
}

TEST_F(OutageTest, DrainEmptiesTheListAndTakesNothingNew) {
  StartRegistry(Store());
  Daemon agent = StartAgent("agent");
  Register(agent.address(), "o1", 8001, "acknowledged");
  Register(agent.address(), "o2", 8002, "acknowledged");
  const RunResult drain = Ctl(agent.address(), {"drain"});
  EXPECT_EQ(drain.status, 0) << drain.err;
  EXPECT_EQ(drain.out, "unregistered 2, remaining 0\n");
  EXPECT_THAT(ListedIds(registry_address_, "orders"), IsEmpty());
  const RunResult refused =
      Ctl(agent.address(), {"register", "orders", "--id", "o3", "--address", "h", "--port", "1"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(refused.err, HasSubstr("drain"));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(agent.process().err(),
                             "drained unregistered=2 remaining=0 persistent=0 by=");
  })) << agent.process().err();
  // Who asks again gets the same answer; the daemon stops at once.
  EXPECT_EQ(Ctl(agent.address(), {"drain"}).out, "unregistered 2, remaining 0\n");
  EXPECT_EQ(agent.Stop(), 0);
}

TEST_F(OutageTest, AnAgentThatCannotReachTheRegistryStopsWithinItsDeadline) {
  StartRegistry(Store());
  Daemon agent = StartAgent("agent", {"--drain-deadline", "300ms"});
  Register(agent.address(), "o1", 8001, "acknowledged");
  registry_->Kill();
  EXPECT_EQ(agent.Stop(), 0);
  EXPECT_THAT(agent.process().err(), HasSubstr("remaining=1"));
}

TEST_F(OutageTest, StaticServicesAreRegisteredBeforeTheRegistryIsThere) {
  // An address that is free now, for later.
  StartRegistry(Store());
  registry_->Kill();
  const std::string config =
      dir_.Write("agent.yaml",
                 "services:\n"
                 "- {name: orders, id: static-1, address: 10.0.0.9, port: 80,\n"
                 "   metadata: {version: 1.10}}\n");
  Daemon agent = StartAgent("agent", {"--config", config});
  EXPECT_TRUE(Eventually([&] {
    return Ctl(agent.address(), {"wait-ready", "--deadline", "200ms"}).status == 1;
  }));
  StartRegistry(Store());
  const RunResult ready = Ctl(agent.address(), {"wait-ready"});
  EXPECT_EQ(ready.status, 0) << ready.err;
  ExpectListed(agent.address(), {"static-1"});
  EXPECT_THAT(Ctl(registry_address_, {"list", "-o", "json"}).out,
              HasSubstr("\"version\": \"1.10\""));
}

}  // namespace
}  // namespace failback
