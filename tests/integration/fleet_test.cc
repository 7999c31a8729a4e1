// What an operator asks of a fleet: which agents are in trouble, whose sessions there are, what an
// agent carries and how far it has come. Real daemons and failbackctl.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RunResult Register(const std::string& target, const std::string& id,
                   std::vector<std::string> more = {}) {
  std::vector<std::string> args = {"register",  "orders",   "--id",   id,
                                   "--address", "10.0.0.1", "--port", "80"};
  args.insert(args.end(), more.begin(), more.end());
  return Ctl(target, args);
}

class FleetTest : public ::testing::Test {
 protected:
  Daemon registry_ = Daemon::Registry({"--store", "memory:", "--limits-max-instances", "2"});
  Daemon agent_ =
      Daemon::Agent(registry_.address(), {"--session-ttl", "1s", "--client-name", "agent-7"});
};

TEST_F(FleetTest, AgentsInTrouble_AreListedWithTheReason) {
  ASSERT_EQ(Register(agent_.address(), "a", {"--wait", "acknowledged"}).status, 0);
  const auto agents = [&] { return Ctl(registry_.address(), {"agents"}).out; };
  EXPECT_TRUE(Eventually([&] { return agents().find("agent-7") != std::string::npos; }))
      << agents();
  EXPECT_EQ(Ctl(registry_.address(), {"agents", "--trouble"}).out, "no agent is in trouble\n");
  ASSERT_EQ(Register(agent_.address(), "b", {"--wait", "acknowledged"}).status, 0);
  ASSERT_EQ(Register(agent_.address(), "beyond").status, 0);
  const auto trouble = [&] { return Ctl(registry_.address(), {"agents", "--trouble"}).out; };
  EXPECT_TRUE(Eventually([&] { return trouble().find("1 parked operation") != std::string::npos; }))
      << trouble();
  EXPECT_THAT(Ctl(registry_.address(), {"status"}).out, HasSubstr("agents        1, 1 in trouble"));
  const std::string sessions = Ctl(registry_.address(), {"sessions", "agent-7"}).out;
  EXPECT_THAT(sessions, AllOf(HasSubstr("agent-7"), HasSubstr("alive")));
  EXPECT_EQ(Ctl(registry_.address(), {"sessions", "nobody", "-o", "json"}).out, "[]\n");
  // One that has gone is not listed any more.
  agent_.Kill();
  EXPECT_TRUE(Eventually([&] { return agents().find("agent-7") == std::string::npos; }));
  EXPECT_THAT(
      Ctl(registry_.address(), {"describe", "orders", "--id", "a"}).out,
      AllOf(HasSubstr("status        not registered\n"),
            HasSubstr("fence         an incarnation with a rank below 1 is refused until ")));
  EXPECT_THAT(Ctl(registry_.address(), {"guard", "release"}).out, HasSubstr("released 0 sessions"));
  const auto line = registry_.process().WaitForLine("eviction guard set by an operator");
  ASSERT_TRUE(line.has_value()) << registry_.process().Describe();
  EXPECT_THAT(*line, AllOf(HasSubstr("released=0"), HasSubstr("by anonymous at ipv4:127.0.0.1:")));
  EXPECT_THAT(Ctl(registry_.address(), {"guard", "off"}).out, HasSubstr("guard off"));
  EXPECT_EQ(Ctl(registry_.address(), {"guard", "maybe"}).status, 2);
}

TEST_F(FleetTest, AnAgentSaysThatSessionsAreTheRegistrys) {
  for (const std::string command : {"sessions", "agents"}) {
    const RunResult result = Ctl(agent_.address(), {command});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("ask failback-registry, not the agent"));
  }
}

TEST_F(FleetTest, Intents_AreListedWithHowFarTheyHaveCome) {
  ASSERT_EQ(Register(agent_.address(), "a", {"--wait", "acknowledged"}).status, 0);
  ASSERT_EQ(Register(agent_.address(), "b", {"--wait", "acknowledged"}).status, 0);
  ASSERT_EQ(Register(agent_.address(), "beyond").status, 0);
  const auto parked = [&] {
    return Ctl(agent_.address(), {"pending"}).out.find("parked") != std::string::npos;
  };
  ASSERT_TRUE(Eventually(parked));
  EXPECT_THAT(Ctl(agent_.address(), {"intents"}).out,
              AllOf(HasSubstr("default/orders/a"), HasSubstr("default/orders/beyond"),
                    HasSubstr("acknowledged"), HasSubstr("RESOURCE_EXHAUSTED"),
                    HasSubstr(" [LIMIT_REACHED]")));
  EXPECT_THAT(Ctl(agent_.address(), {"intents", "--state", "parked"}).out,
              AllOf(HasSubstr("beyond"), Not(HasSubstr("orders/a "))));
  EXPECT_EQ(Ctl(agent_.address(), {"intents", "--state", "wrong"}).status, 2);
  EXPECT_THAT(Ctl(agent_.address(), {"describe", "orders", "--id", "beyond"}).out,
              AllOf(HasSubstr("status        parked: not acknowledged by the registry; its owner "
                              "says healthy\n"),
                    HasSubstr("last status   register default/orders/beyond at "),
                    HasSubstr("  code        RESOURCE_EXHAUSTED, LIMIT_REACHED\n"),
                    HasSubstr("  limit       2\n")));
  EXPECT_EQ(Ctl(agent_.address(), {"intents", "--state", "accepted"}).status, 2);
  // A list of the agent shows it too, while the registry answers; a list of the registry has none
  // of it.
  const std::string list = Ctl(agent_.address(), {"list", "orders"}).out;
  EXPECT_THAT(list, AllOf(HasSubstr("orders   a       10.0.0.1:80  healthy"),
                          HasSubstr("orders   beyond  10.0.0.1:80  parked")));
  EXPECT_THAT(Ctl(agent_.address(), {"list", "--state", "parked", "--state", "held"}).out,
              AllOf(HasSubstr("beyond"), Not(HasSubstr("orders   a "))));
  EXPECT_THAT(Ctl(agent_.address(), {"list", "--healthy"}).out, Not(HasSubstr("beyond")));
  EXPECT_THAT(Ctl(registry_.address(), {"list"}).out, Not(HasSubstr("beyond")));
  const RunResult wrong = Ctl(agent_.address(), {"list", "--state", "unwell"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("'unwell' is not one of healthy, unhealthy, draining"));
  const RunResult waited = Ctl(agent_.address(), {"wait-ready", "--deadline", "1s"});
  EXPECT_EQ(waited.status, 1);
  EXPECT_THAT(waited.err, HasSubstr("has acknowledged 2 of 3 instances, 1 of its operations is "
                                    "parked: `failbackctl pending` says why"));
  const RunResult refused = Ctl(agent_.address(), {"retry", "--wait", "10s"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.out, AllOf(HasSubstr("retried 1: 0 done, 1 not\n"), HasSubstr("parked")));
  ASSERT_EQ(
      Ctl(agent_.address(), {"unregister", "orders", "--id", "a", "--wait", "acknowledged"}).status,
      0);
  const RunResult done = Ctl(agent_.address(), {"retry", "--wait", "10s"});
  EXPECT_EQ(done.status, 0) << done.out;
  EXPECT_EQ(done.out, "retried 1: 1 done, 0 not\n");
}

TEST_F(FleetTest, ListOfAllNamespaces) {
  ASSERT_EQ(Register(registry_.address(), "a").status, 0);
  ASSERT_EQ(Register(registry_.address(), "b", {"--namespace", "test"}).status, 0);
  const std::string all = Ctl(registry_.address(), {"list", "-A"}).out;
  EXPECT_THAT(all, AllOf(HasSubstr("NAMESPACE"), HasSubstr("default    orders   a"),
                         HasSubstr("test       orders   b")));
  EXPECT_EQ(Ctl(registry_.address(), {"list", "-A", "--namespace", "test"}).status, 2);
  // An agent lists the namespaces that it knows of, and says which.
  ASSERT_EQ(Register(agent_.address(), "c", {"--namespace", "west", "--wait", "accepted"}).status,
            0);
  const RunResult known = Ctl(agent_.address(), {"list", "-A"});
  EXPECT_EQ(known.status, 0) << known.err;
  EXPECT_THAT(known.out,
              AllOf(HasSubstr("default    orders   a"), HasSubstr("west       orders   c")));
  EXPECT_THAT(
      known.err,
      HasSubstr("registers in, and default: default, west; of all others ask the registry"));
}

TEST_F(FleetTest, ARegistrationOfAnotherNamesWhoHoldsIt) {
  // The later incarnation wins: the one whose first session is the later.
  ASSERT_EQ(Register(agent_.address(), "b", {"--wait", "acknowledged"}).status, 0);
  Daemon other =
      Daemon::Agent(registry_.address(), {"--session-ttl", "1s", "--client-name", "agent-8"});
  ASSERT_EQ(Register(other.address(), "a", {"--wait", "acknowledged"}).status, 0);
  ASSERT_EQ(Register(agent_.address(), "a").status, 0);
  const auto ask = [&](const std::vector<std::string>& args) {
    return Ctl(agent_.address(), args).out;
  };
  ASSERT_TRUE(Eventually([&] { return ask({"pending"}).find("superseded") != std::string::npos; }));
  EXPECT_THAT(ask({"pending"}), HasSubstr("), held by agent-8"));
  EXPECT_THAT(ask({"intents", "--state", "superseded"}), HasSubstr("), held by agent-8"));
  EXPECT_THAT(ask({"list", "--state", "superseded"}), HasSubstr("agent-8"));
  // The registry lists it as healthy: it is, and another's.
  EXPECT_THAT(ask({"list", "--healthy"}), HasSubstr("superseded"));
  EXPECT_THAT(
      ask({"describe", "orders", "--id", "a"}),
      AllOf(HasSubstr("status        superseded: another holds the key, or held it until lately"),
            HasSubstr("owner         agent-8, ")));
}

// The other registry has it as this agent's.
TEST_F(FleetTest, SupersededAtOneOfTwoRegistries_TheOwnerIsTheWinnerThere) {
  Daemon second = Daemon::Registry({"--store", "memory:"});
  Daemon both = Daemon::Agent("two=grpc://" + second.address(),
                              {"--registry", "one=grpc://" + registry_.address(), "--session-ttl",
                               "1s", "--client-name", "agent-9"});
  // At both, before the other agent's session there.
  ASSERT_EQ(Ctl(both.address(), {"wait-ready"}).status, 0);
  ASSERT_EQ(Register(both.address(), "b", {"--wait", "acknowledged"}).status, 0);
  Daemon winner = Daemon::Agent(second.address(), {"--session-ttl", "1s", "--client-name", "won"});
  ASSERT_EQ(Register(winner.address(), "a", {"--wait", "acknowledged"}).status, 0);
  ASSERT_EQ(Register(both.address(), "a").status, 0);
  const auto describe = [&] {
    return Ctl(both.address(), {"describe", "orders", "--id", "a"}).out;
  };
  EXPECT_TRUE(Eventually([&] {
    return describe().find("owner         won\n") != std::string::npos;
  })) << describe();
  EXPECT_THAT(describe(), HasSubstr("status        superseded: another holds the key"));
  EXPECT_THAT(Ctl(both.address(), {"list", "--state", "superseded"}).out,
              AllOf(HasSubstr("  won "), Not(HasSubstr("agent-9"))));
}

}  // namespace
}  // namespace failback
