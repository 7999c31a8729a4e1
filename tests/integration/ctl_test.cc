// failbackctl as scripts use it: exit statuses, what goes to which stream, and the three formats.

#include <csignal>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class CtlTest : public ::testing::Test {
 protected:
  void Register(const std::string& id, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"register", "orders", "--id", id,       "--address",
                                     "10.0.0.1", "--port", "80",   "--wait", "acknowledged"};
    args.insert(args.end(), more.begin(), more.end());
    const RunResult result = Ctl(agent_.address(), args);
    ASSERT_EQ(result.status, 0) << result.err;
  }

  Daemon registry_ = Daemon::Registry({"--store", "memory:"});
  Daemon agent_ = Daemon::Agent(registry_.address(), {});
};

TEST_F(CtlTest, WhereNobodyAnswersTheStatusIs3) {
  registry_.Kill();
  const std::vector<std::vector<std::string>> commands = {
      {"list"}, {"pending"}, {"subscribe", "orders"}, {"wait-ready", "--deadline", "1s"}};
  for (const auto& command : commands) {
    const RunResult result = Ctl(registry_.address(), command);
    EXPECT_EQ(result.status, 3);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "failbackctl: " + command[0] + ": UNAVAILABLE: no answer from " +
                              registry_.address() +
                              " (Connection refused); is failback-agent or failback-registry "
                              "running there? --target says where to look\n");
  }
}

TEST_F(CtlTest, ARegistryIsToldFromAnAgent) {
  for (const std::string command : {"pending", "retry", "drain"}) {
    const RunResult result = Ctl(registry_.address(), {command});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, StartsWith("failbackctl: " + command + ": UNIMPLEMENTED: " +
                                       registry_.address() + " is a registry, not an agent; "));
  }
  const RunResult status = Ctl(registry_.address(), {"status"});
  EXPECT_EQ(status.status, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("state         ready\nstore         memory:, id "));
  EXPECT_THAT(Ctl(registry_.address(), {"status", "-o", "json"}).out,
              HasSubstr("\"kind\": \"DAEMON_KIND_REGISTRY\""));
  EXPECT_EQ(Ctl(registry_.address(), {"wait-ready"}).out, "ready\n");
  EXPECT_EQ(Ctl(agent_.address(), {"wait-ready"}).out, "ready\n");
}

TEST_F(CtlTest, TheTargetMayComeFromTheEnvironment) {
  const RunResult result =
      RunProcess({CtlBinary(), "wait-ready"}, {{"FAILBACK_TARGET", agent_.address()}});
  EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(CtlTest, ListSelectsAndFormats) {
  Register("a", {"--zone", "z1", "--meta", "version=1.10", "--meta", "env=prod"});
  Register("b", {"--zone", "z2", "--meta", "version=1.1"});
  Register("c", {"--namespace", "test", "--weight", "0", "--persistent"});
  const std::string target = registry_.address();
  EXPECT_THAT(ListedIds(target, "orders"), ElementsAre("a", "b"));
  EXPECT_THAT(Ctl(target, {"list", "orders", "--zone", "z1"}).out,
              ::testing::AllOf(HasSubstr("orders   a   10.0.0.1:80  healthy  100     z1"),
                               Not(HasSubstr("orders   b"))));
  EXPECT_THAT(Ctl(target, {"list", "--meta", "version=1.1", "-o", "yaml"}).out,
              ::testing::AllOf(HasSubstr("instanceId: b\n"), HasSubstr("version: \"1.1\"\n"),
                               Not(HasSubstr("instanceId: a\n"))));
  EXPECT_THAT(Ctl(target, {"list", "--namespace", "test", "-o", "json"}).out,
              ::testing::AllOf(StartsWith("[\n{\n"), HasSubstr("\"instanceId\": \"c\""),
                               HasSubstr("\"weight\": 0"), HasSubstr("\"persistent\": true")));
  EXPECT_EQ(Ctl(target, {"list", "nothing", "-o", "json"}).out, "[]\n");
  EXPECT_EQ(Ctl(target, {"list", "nothing", "-o", "yaml"}).out, "[]\n");
  EXPECT_THAT(Ctl(target, {"list", "nothing"}).out, StartsWith("SERVICE  ID  ENDPOINT"));
}

TEST_F(CtlTest, ARepeatedFlagTakesOneWordEach) {
  Register("a", {"--zone", "z"});
  Register("b");
  const RunResult listed = Ctl(agent_.address(), {"list", "--zone", "z", "--zone=y", "orders"});
  EXPECT_EQ(listed.status, 0) << listed.err;
  EXPECT_THAT(listed.out, ::testing::AllOf(HasSubstr(" a "), Not(HasSubstr(" b "))));
  EXPECT_THAT(Ctl(agent_.address(), {"list", "--zone", "z", "others"}).out, Not(HasSubstr(" a ")));
}

TEST_F(CtlTest, AnAgentWithoutItsRegistrySaysWhatItDoesNotKnow) {
  Register("a");
  registry_.Kill();
  for (const char* format : {"table", "json", "yaml"}) {
    const RunResult unknown = Ctl(agent_.address(), {"list", "nosuch", "-o", format});
    EXPECT_EQ(unknown.status, 1) << format;
    EXPECT_EQ(unknown.out, "");
    EXPECT_THAT(unknown.err, HasSubstr("list: UNAVAILABLE: "));
  }
  const RunResult carried = Ctl(agent_.address(), {"list", "orders"});
  EXPECT_EQ(carried.status, 0) << carried.err;
  EXPECT_THAT(carried.out, HasSubstr("10.0.0.1:80"));
  const RunResult mark = Ctl(agent_.address(), {"online", "orders", "--id", "a"});
  EXPECT_EQ(mark.status, 1);
  EXPECT_THAT(mark.err, HasSubstr("; a mark is tried once: set it again when `failbackctl status` "
                                  "shows the registry ready\n"));
}

TEST_F(CtlTest, ADrainThatLeavesSomethingSaysWhy) {
  Register("a");
  registry_.Kill();
  const RunResult drain = Ctl(agent_.address(), {"drain", "--deadline", "1s"});
  EXPECT_EQ(drain.status, 1);
  EXPECT_THAT(drain.out, StartsWith("unregistered 0, remaining 1\nINSTANCE          LAST STATUS"));
  EXPECT_THAT(drain.out, HasSubstr("default/orders/a  UNAVAILABLE: "));
  EXPECT_TRUE(agent_.process().WaitForLine("first=default/orders/a").has_value());
  EXPECT_THAT(Ctl(agent_.address(), {"status"}).out, HasSubstr("last error    UNAVAILABLE: "));
  // It does not wait for what cannot come.
  const RunResult ready = Ctl(agent_.address(), {"wait-ready", "--deadline", "1h"});
  EXPECT_EQ(ready.status, 1);
  EXPECT_EQ(ready.err,
            "failbackctl: wait-ready: FAILED_PRECONDITION: the agent is draining; the agent was "
            "drained or is stopping: use another, or restart it\n");
}

TEST_F(CtlTest, DescribeShowsTheFenceOfWhatIsRegistered) {
  Register("a");
  EXPECT_THAT(Ctl(registry_.address(), {"describe", "orders", "--id", "a"}).out,
              HasSubstr("fence         an incarnation with a rank below "));
  const RunResult by_hand = Ctl(registry_.address(), {"register", "orders", "--id", "a",
                                                      "--address", "10.0.0.2", "--port", "80"});
  ASSERT_EQ(by_hand.status, 0) << by_hand.err;
  EXPECT_THAT(Ctl(registry_.address(), {"describe", "orders", "--id", "a"}).out,
              HasSubstr("is refused until `failbackctl unregister`, and for max(TTL, 60 s) after "
                        "it\n"));
  const RunResult unknown = Ctl(registry_.address(), {"online", "orders", "--id", "unknown"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND: key: default/orders/unknown is not registered"));
}

TEST_F(CtlTest, AnUnknownNameIsNotServing) {
  const RunResult unknown = Ctl(agent_.address(), {"health", "alive"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("health: NOT_FOUND: 'alive' is not known there; an agent has "
                                     "liveness, readiness and startup"));
}

TEST_F(CtlTest, DescribeShowsAnInstanceAndWhatHappenedToIt) {
  Register("a", {"--meta", "version=1.10"});
  for (const std::string& target : {registry_.address(), agent_.address()}) {
    const RunResult described = Ctl(target, {"describe", "orders", "--id", "a"});
    EXPECT_EQ(described.status, 0) << described.err;
    EXPECT_THAT(described.out, ::testing::AllOf(HasSubstr("instance      default/orders/a\n"),
                                                HasSubstr("endpoint      10.0.0.1:80\n"),
                                                HasSubstr("status        healthy\n"),
                                                HasSubstr("metadata      version=1.10\n")));
    EXPECT_THAT(Ctl(target, {"describe", "orders", "--id", "a", "-o", "yaml"}).out,
                HasSubstr("instanceId: a\n"));
    const RunResult unknown = Ctl(target, {"describe", "orders", "--id", "nobody"});
    EXPECT_EQ(unknown.status, 1);
    EXPECT_THAT(unknown.err, StartsWith("failbackctl: describe: NOT_FOUND: "));
    EXPECT_THAT(unknown.err, HasSubstr(" nothing is remembered of it since the "));
    // Only a registry has agents to ask.
    EXPECT_EQ(unknown.err.find("an agent may carry it") != std::string::npos,
              target == registry_.address());
  }
}

TEST_F(CtlTest, AnInstanceIsTakenOutOfRotationAndBack) {
  Register("a", {"--meta", "version=1.10"});
  const std::string target = registry_.address();
  EXPECT_EQ(Ctl(target, {"offline", "orders", "--id", "a", "--reason", "leaks"}).out,
            "default/orders/a is offline\n");
  EXPECT_THAT(Ctl(target, {"list", "orders"}).out, HasSubstr("a   10.0.0.1:80  offline  100"));
  EXPECT_THAT(Ctl(target, {"describe", "orders", "--id", "a"}).out,
              ::testing::AllOf(HasSubstr("status        offline by "), HasSubstr(": leaks\n"),
                               HasSubstr("metadata      version=1.10\n")));
  EXPECT_EQ(Ctl(target, {"online", "orders", "--id", "a"}).out, "default/orders/a is online\n");
  EXPECT_EQ(Ctl(target, {"online", "orders", "--id", "a"}).out,
            "default/orders/a is online already\n");
  EXPECT_THAT(Ctl(target, {"list", "orders"}).out, HasSubstr("a   10.0.0.1:80  healthy  100"));
  EXPECT_EQ(Ctl(target, {"offline", "orders", "--id", "nobody"}).status, 1);
  EXPECT_THAT(Ctl(registry_.address(), {"offline", "orders", "--id", "none"}).err,
              HasSubstr("NOT_FOUND: key: default/orders/none is not registered"));
}

TEST_F(CtlTest, SubscribeEndsAfterItsCount) {
  Register("a");
  const RunResult json =
      Ctl(agent_.address(), {"subscribe", "orders", "--count", "1", "-o", "json"});
  EXPECT_EQ(json.status, 0) << json.err;
  ASSERT_EQ(ParseEvents(json.out).size(), 1u);
  EXPECT_EQ(ParseEvents(json.out)[0].snapshot().instances(0).key().instance_id(), "a");
  const RunResult table = Ctl(registry_.address(), {"subscribe", "orders", "--count", "1"});
  EXPECT_THAT(table.out, HasSubstr("  snapshot       revision "));
  EXPECT_THAT(table.out, HasSubstr(": a 10.0.0.1:80\n"));
}

TEST_F(CtlTest, TheListOfServicesIsFollowedAtAnAgentAndAtARegistry) {
  Register("a");
  Register("b");
  for (const std::string& target : {registry_.address(), agent_.address()}) {
    const RunResult table = Ctl(target, {"subscribe", "--count", "1"});
    EXPECT_EQ(table.status, 0) << table.err;
    EXPECT_THAT(table.out, HasSubstr(": orders (2)\n"));
  }
  auto subscriber =
      Process::Start({CtlBinary(), "--target", agent_.address(), "subscribe", "-o", "json"});
  const auto has_events = [&](size_t count) {
    return subscriber->WaitForOutput(
        [count](const std::string& out) { return ParseEvents(out).size() >= count; });
  };
  ASSERT_TRUE(has_events(1)) << subscriber->Describe();
  Register("c");
  ASSERT_TRUE(has_events(2)) << subscriber->Describe();
  const auto delta = ParseEvents(subscriber->out())[1].delta();
  ASSERT_EQ(delta.upserts_size(), 1);
  EXPECT_EQ(delta.upserts(0).key().service(), "orders");
  EXPECT_EQ(delta.upserts(0).instance_count(), 3u);
  EXPECT_THAT(Ctl(agent_.address(), {"subscribe", "--zone", "z"}).err,
              HasSubstr("selector.zones: is not allowed without a service"));
}

TEST_F(CtlTest, RegisterTellsHowFarItCame) {
  const std::vector<std::string> args = {"register", "orders", "--address",
                                         "10.0.0.1", "--port", "80"};
  EXPECT_EQ(Ctl(registry_.address(), args).out,
            "registered default/orders/10.0.0.1:80: acknowledged\n");
  EXPECT_EQ(Ctl(agent_.address(), args).out, "registered default/orders/10.0.0.1:80: accepted\n");
  EXPECT_EQ(Ctl(registry_.address(), {"unregister", "orders", "--id", "nobody"}).out,
            "unregistered default/orders/nobody: acknowledged\n");
}

TEST_F(CtlTest, ACancelSaysThatTheCallHadBeenSent) {
  int tries = 0;
  std::string said;
  // A call ends by itself after some seconds: on a machine that stalls, before it is cancelled.
  EXPECT_TRUE(Eventually([&] {
    if (Ctl(agent_.address(), {"wait-ready"}).status != 0) return false;
    const std::string id = "a" + std::to_string(++tries);
    registry_.process().Signal(SIGSTOP);
    EXPECT_EQ(
        Ctl(agent_.address(), {"register", "orders", "--id", id, "--address", "h", "--port", "1"})
            .status,
        0);
    said = Ctl(agent_.address(), {"cancel", "register default/orders/" + id}).out;
    registry_.process().Signal(SIGCONT);
    return said == "cancelled 1; 1 had been sent, and may still take effect\n";
  })) << said;
}

TEST_F(CtlTest, PendingOperationsAreRetriedAndCancelled) {
  registry_.Kill();
  for (const std::string id : {"a", "b"}) {
    ASSERT_EQ(
        Ctl(agent_.address(), {"register", "orders", "--id", id, "--address", "h", "--port", "1"})
            .status,
        0);
  }
  // With --wait the deadline bounds the wait, not the intent.
  const RunResult waited =
      Ctl(agent_.address(), {"register", "orders", "--id", "c", "--address", "h", "--port", "1",
                             "--wait", "acknowledged", "--timeout", "1s"});
  EXPECT_EQ(waited.status, 1);
  EXPECT_EQ(
      waited.err,
      "failbackctl: register: DEADLINE_EXCEEDED: not acknowledged within 1s; an agent goes on "
      "trying, `failbackctl pending` shows how far it is; give it more time with --timeout\n");
  // With --check the caller gets the failure, and nothing stays behind.
  const RunResult checked = Ctl(agent_.address(), {"register", "orders", "--id", "d", "--address",
                                                   "h", "--port", "1", "--check"});
  EXPECT_EQ(checked.status, 1);
  EXPECT_THAT(checked.err, HasSubstr("UNAVAILABLE: no session at grpc://" + registry_.address() +
                                     ": Connection refused"));

  const auto ids = [this] {
    std::vector<std::string> result;
    for (const auto& row : PendingAt(agent_.address())) result.push_back(row.id());
    return result;
  };
  ASSERT_THAT(ids(), ElementsAre("register default/orders/a", "register default/orders/b",
                                 "register default/orders/c"));
  EXPECT_EQ(Ctl(agent_.address(), {"retry", "register default/orders/a"}).out, "retried 1\n");
  const RunResult unknown = Ctl(agent_.address(), {"retry", "register default/orders/x"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, StartsWith("failbackctl: retry: NOT_FOUND: "));
  EXPECT_EQ(Ctl(agent_.address(), {"cancel", "register default/orders/a"}).out, "cancelled 1\n");
  EXPECT_THAT(ids(), ElementsAre("register default/orders/b", "register default/orders/c"));
  EXPECT_EQ(Ctl(agent_.address(), {"cancel", "--all"}).out, "cancelled 2\n");
  EXPECT_THAT(ids(), IsEmpty());
  EXPECT_EQ(Ctl(agent_.address(), {"pending"}).out, "nothing pending\n");
  EXPECT_EQ(Ctl(agent_.address(), {"pending", "-o", "json"}).out, "[]\n");
}

TEST_F(CtlTest, StatusShowsTheUpstream) {
  Register("a");
  const std::string out = Ctl(agent_.address(), {"status"}).out;
  EXPECT_THAT(out, HasSubstr("upstream      grpc://" + registry_.address() + "\n"));
  EXPECT_THAT(out, HasSubstr("state         ready since "));
  EXPECT_THAT(out, HasSubstr("instances     1 desired, 1 acknowledged\n"));
  EXPECT_THAT(Ctl(agent_.address(), {"status", "-o", "json"}).out,
              HasSubstr("\"state\": \"UPSTREAM_STATE_READY\""));
  EXPECT_THAT(Ctl(agent_.address(), {"status", "-o", "yaml"}).out,
              HasSubstr("state: UPSTREAM_STATE_READY\n"));
}

TEST(CtlUpstreamsTest, ACheckedIntentThatOneRefusesNamesTheOtherAndWhatToDo) {
  Daemon old_registry = Daemon::Registry({"--store", "memory:"});
  Daemon new_registry = Daemon::Registry({"--store", "memory:"});
  Daemon agent = Daemon::Agent("old=grpc://" + old_registry.address(),
                               {"--registry", "new=grpc://" + new_registry.address()});
  ASSERT_EQ(Ctl(agent.address(), {"wait-ready"}).status, 0);
  new_registry.Kill();
  std::vector<std::string> args = {"register",  "orders", "--id",   "a",
                                   "--address", "h",      "--port", "1"};
  std::vector<std::string> checked = args;
  checked.push_back("--check");
  const RunResult refused = Ctl(agent.address(), checked);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, StartsWith("failbackctl: register: UNAVAILABLE: new: "));
  EXPECT_THAT(refused.err,
              HasSubstr("; taken by old (acknowledged): repeat it without --check, and the agent "
                        "retries the others; or unregister it; `failbackctl status` there says "
                        "what does not answer\n"));
  EXPECT_THAT(ListedIds(old_registry.address(), "orders"), ElementsAre("a"));
  EXPECT_EQ(Ctl(agent.address(), args).status, 0);
  EXPECT_THAT(Ctl(agent.address(), {"pending"}).out, HasSubstr("register default/orders/a"));
}

// A fleet moves from one registry to another: both at once, then only the new one.
TEST(CtlUpstreamsTest, TwoRegistriesAtOnceAndThenOne) {
  const TempDir dir;
  Daemon old_registry = Daemon::Registry({"--store", "memory:"});
  Daemon new_registry = Daemon::Registry({"--store", "memory:"});
  const std::string state = dir.File("state");
  const std::string to_old = "old=grpc://" + old_registry.address();
  const std::string to_new = "new=grpc://" + new_registry.address();
  const auto register_at = [](const std::string& agent, const std::string& id) {
    return Ctl(agent,
               {"register", "orders", "--id", id, "--address", "h", "--port", "1", "-o", "json"});
  };
  {
    Daemon agent = Daemon::Agent(to_old, {"--state-dir", state});
    EXPECT_EQ(register_at(agent.address(), "a").status, 0);
    EXPECT_EQ(Ctl(agent.address(), {"wait-ready"}).status, 0);
    agent.Kill();
  }
  {
    Daemon agent = Daemon::Agent(to_new, {"--registry", to_old, "--state-dir", state});
    EXPECT_EQ(Ctl(agent.address(), {"wait-ready"}).status, 0);
    EXPECT_THAT(ListedIds(new_registry.address(), "orders"), ElementsAre("a"));
    old_registry.Kill();
    const RunResult registered = register_at(agent.address(), "b");
    EXPECT_EQ(registered.status, 0) << registered.err;
    EXPECT_THAT(registered.out, ::testing::AllOf(HasSubstr("\"upstream\": \"old\""),
                                                 HasSubstr("\"upstream\": \"new\"")));
    EXPECT_TRUE(
        Eventually([&] { return ListedIds(new_registry.address(), "orders").size() == 2; }));
    const auto pending = [&] {
      std::vector<std::string> rows;
      for (const auto& row : PendingAt(agent.address())) {
        rows.push_back(row.upstream() + " " + row.id());
      }
      return rows;
    };
    EXPECT_TRUE(Eventually([&] {
      return pending() == std::vector<std::string>{"old register default/orders/a",
                                                   "old register default/orders/b"} ||
             pending() == std::vector<std::string>{"old register default/orders/b"};
    }));
    EXPECT_THAT(Ctl(agent.address(), {"pending"}).out, HasSubstr("  old\n"));
    EXPECT_THAT(Ctl(agent.address(), {"status"}).out,
                ::testing::AllOf(HasSubstr("upstream      old, grpc://"),
                                 HasSubstr("upstream      new, grpc://")));
    const RunResult elsewhere = Ctl(agent.address(), {"retry", "--upstream", "none"});
    EXPECT_EQ(elsewhere.status, 1);
    EXPECT_THAT(elsewhere.err, HasSubstr("\"none\" is not an upstream of this agent, as old, new"));
    EXPECT_EQ(ListedIds(agent.address(), "orders").size(), 2u);
    agent.Kill();
  }
  Daemon agent = Daemon::Agent(to_new, {"--state-dir", state});
  EXPECT_EQ(Ctl(agent.address(), {"wait-ready"}).status, 0);
  EXPECT_THAT(ListedIds(agent.address(), "orders"), ElementsAre("a", "b"));
  EXPECT_THAT(PendingAt(agent.address()), IsEmpty());
}

TEST(CtlHelpTest, EveryCommandHasExamples) {
  const RunResult help = RunProcess({CtlBinary(), "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit status: 0 done; 1 refused"));
  for (const std::string command :
       {"register",      "unregister", "list",     "subscribe",  "pending", "retry",
        "cancel",        "drain",      "status",   "wait-ready", "health",  "dns",
        "report-health", "completion", "describe", "offline",    "online",  "sessions",
        "agents",        "guard",      "intents"}) {
    EXPECT_THAT(help.out, HasSubstr("\n  " + command + " "));
    const RunResult own = RunProcess({CtlBinary(), command, "--help"});
    EXPECT_EQ(own.status, 0);
    EXPECT_THAT(own.out, HasSubstr("Examples:\n  failbackctl " + command));
  }
}

}  // namespace
}  // namespace failback
