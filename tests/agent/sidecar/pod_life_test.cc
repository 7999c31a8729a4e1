// The life of a pod: identity, probes, the end, a sidecar that is restarted, and a successor with
// the same name.

#include <csignal>
#include <memory>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "tests/agent/sidecar/sidecar_fixture.h"
#include "tests/util/observed_states.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PodLifeTest : public SidecarTest {
 protected:
  // A sidecar as Kubernetes starts it: the same file for every pod, identity from the environment.
  std::unique_ptr<Process> StartPod(const std::string& name, const std::string& uid,
                                    const std::string& ip, const std::string& socket_name,
                                    std::vector<std::string> args = {}) {
    const std::string config =
        dir_.Write("agent.yaml", "services:\n- {name: orders, port: 8080}\n");
    args.insert(args.begin(), {AgentBinary(), "--config", config, "--admin", ""});
    auto process = Process::Start(args, {{"FAILBACK_REGISTRY", "grpc://" + registry_.address()},
                                         {"FAILBACK_LISTEN", "unix:" + dir_.File(socket_name)},
                                         {"FAILBACK_POD_NAME", name},
                                         {"FAILBACK_POD_UID", uid},
                                         {"FAILBACK_POD_IP", ip},
                                         {"FAILBACK_NAMESPACE", "shop"},
                                         {"FAILBACK_ZONE", "eu-1a"},
                                         {"FAILBACK_POD_LABELS_FILE", Labels()}});
    EXPECT_TRUE(process->WaitForLine("listening on")) << process->Describe();
    return process;
  }

  std::string Labels() { return dir_.Write("labels", "version=\"1.10\"\n"); }

  RunResult At(const std::string& socket_name, const std::vector<std::string>& args) {
    return Ctl("unix:" + dir_.File(socket_name), args);
  }

  std::string ListedInShop() {
    return Ctl(registry_.address(), {"list", "--namespace", "shop", "-o", "json"}).out;
  }

  // What a subscriber at the registry saw must never have been without the instance, once it was
  // there.
  static void ExpectNeverGone(Process* subscriber, const std::string& id) {
    ObservedStates observed;
    bool there = false;
    for (const auto& event : ParseEvents(subscriber->out())) {
      ASSERT_TRUE(observed.Apply(event).ok());
      if (observed.CurrentIds().count(id) > 0) there = true;
      if (there) {
        EXPECT_EQ(observed.CurrentIds().count(id), 1u) << subscriber->out();
      }
    }
    EXPECT_TRUE(there);
  }

  std::unique_ptr<Process> Watch() {
    auto watch = Process::Start({CtlBinary(), "--target", registry_.address(), "subscribe",
                                 "orders", "--namespace", "shop", "-o", "json"});
    EXPECT_TRUE(
        watch->WaitForOutput([](const std::string& out) { return !ParseEvents(out).empty(); }));
    return watch;
  }
};

TEST_F(PodLifeTest, IdentityComesFromTheDownwardApi) {
  auto pod = StartPod("orders-7f-x", "uid-1", "10.1.2.3", "a.sock");
  EXPECT_EQ(At("a.sock", {"wait-ready"}).out, "ready\n");
  const std::string listed = ListedInShop();
  for (const std::string part :
       {"\"instanceId\": \"orders-7f-x\"", "\"address\": \"10.1.2.3\"", "\"zone\": \"eu-1a\"",
        "\"namespace\": \"shop\"", "\"version\": \"1.10\"", "\"incarnation\": \"uid-1\"",
        "\"clientName\": \"failback-agent@orders-7f-x\""}) {
    EXPECT_THAT(listed, HasSubstr(part));
  }
}

TEST_F(PodLifeTest, ProbesAskGrpcHealth) {
  registry_.Kill();
  auto pod = StartPod("p", "uid-1", "10.1.2.3", "a.sock");
  // It runs, and has not done its work yet.
  EXPECT_EQ(At("a.sock", {"health"}).out, "serving\n");
  EXPECT_EQ(At("a.sock", {"health", "startup"}).out, "serving\n");
  EXPECT_EQ(At("a.sock", {"health", "liveness"}).out, "serving\n");
  const RunResult unready = At("a.sock", {"health", "readiness"});
  EXPECT_EQ(unready.out, "not_serving\n") << unready.err;
  EXPECT_EQ(unready.status, 1);
  EXPECT_EQ(At("a.sock", {"health", "nonsense"}).status, 1);
  Daemon back = Daemon::Registry({"--store", "memory:", "--listen", registry_.address()});
  EXPECT_TRUE(Eventually([&] { return At("a.sock", {"health", "readiness"}).status == 0; }));
  // An outage of the registry takes no pod out of service.
  back.Kill();
  EXPECT_TRUE(Eventually([&] {
    return At("a.sock", {"wait-ready", "--deadline", "100ms"}).status == 1;
  }));
  EXPECT_EQ(At("a.sock", {"health", "readiness"}).status, 0);
  // A drain does, and does not end it: that is for SIGTERM.
  EXPECT_THAT(At("a.sock", {"drain", "--deadline", "100ms"}).out, HasSubstr("remaining 1"));
  EXPECT_EQ(At("a.sock", {"health", "readiness"}).status, 1);
  EXPECT_EQ(At("a.sock", {"health", "liveness"}).status, 0);
  EXPECT_EQ(Ctl("unix:" + dir_.File("none.sock"), {"health"}).status, 3);
}

TEST_F(PodLifeTest, DrainBeforeTheStopAndSigtermWithinTheGracePeriod) {
  auto pod = StartPod("p", "uid-1", "10.1.2.3", "a.sock");
  EXPECT_EQ(At("a.sock", {"wait-ready"}).out, "ready\n");
  EXPECT_EQ(At("a.sock", {"drain"}).out, "unregistered 1, remaining 0\n");  // preStop
  EXPECT_EQ(ListedInShop(), "[]\n");
  pod->Signal(SIGTERM);
  EXPECT_EQ(pod->WaitForExit(), 0);
  // Without preStop SIGTERM drains, and it ends in time though the registry does not answer.
  auto other = StartPod("q", "uid-2", "10.1.2.4", "b.sock", {"--drain-deadline", "300ms"});
  EXPECT_EQ(At("b.sock", {"wait-ready"}).out, "ready\n");
  registry_.process().Signal(SIGSTOP);
  other->Signal(SIGTERM);
  EXPECT_EQ(other->WaitForExit(absl::Seconds(30)), 0) << "Kubernetes waits no longer";
  registry_.process().Signal(SIGCONT);
}

TEST_F(PodLifeTest, ASidecarThatIsRestartedBringsItsServicesBack) {
  const std::string state = dir_.File("state");
  for (const bool journal : {false, true}) {
    const std::string uid = journal ? "uid-j" : "uid-n";
    const std::vector<std::string> args =
        journal ? std::vector<std::string>{"--state-dir", state} : std::vector<std::string>{};
    auto pod = StartPod("p", uid, "10.1.2.3", "a.sock", args);
    EXPECT_EQ(At("a.sock", {"wait-ready"}).out, "ready\n");
    auto watch = Watch();
    // kill -9: the session is resumed, no subscriber sees a gap.
    pod->Kill();
    pod = StartPod("p", uid, "10.1.2.3", "a.sock", args);
    EXPECT_EQ(At("a.sock", {"wait-ready"}).out, "ready\n");
    EXPECT_THAT(ListedInShop(), HasSubstr("\"instanceId\": \"p\""));
    ExpectNeverGone(watch.get(), "p");
    // A liveness restart begins with SIGTERM, which drains; the same incarnation comes back.
    pod->Signal(SIGTERM);
    EXPECT_EQ(pod->WaitForExit(), 0);
    EXPECT_EQ(ListedInShop(), "[]\n");
    pod = StartPod("p", uid, "10.1.2.3", "a.sock", args);
    EXPECT_EQ(At("a.sock", {"wait-ready"}).out, "ready\n");
    EXPECT_THAT(ListedInShop(), HasSubstr("\"instanceId\": \"p\""));
    pod->Signal(SIGTERM);
    EXPECT_EQ(pod->WaitForExit(), 0);
  }
}

TEST_F(PodLifeTest, WhatAnAppRegisteredComesBackFromTheJournal) {
  const std::vector<std::string> args = {"--state-dir", dir_.File("state")};
  auto pod = StartPod("p", "uid-1", "10.1.2.3", "a.sock", args);
  ASSERT_EQ(At("a.sock", {"register", "own", "--id", "app", "--address", "h", "--port", "1",
                          "--wait", "acknowledged"})
                .status,
            0);
  pod->Kill();
  pod = StartPod("p", "uid-1", "10.1.2.3", "a.sock", args);
  EXPECT_TRUE(Eventually([&] {
    return ListedIds("unix:" + dir_.File("a.sock"), "own") == std::vector<std::string>{"app"};
  }));
  EXPECT_THAT(ListedIds(registry_.address(), "own"), ElementsAre("app"));
}

TEST_F(PodLifeTest, AServiceThatLeavesTheFileWhileTheSidecarIsDownIsWithdrawn) {
  const std::vector<std::string> args = {"--state-dir", dir_.File("state")};
  const std::string both =
      "services:\n- {name: orders, id: a, address: h, port: 1}\n- {name: orders, id: b, address: "
      "h, "
      "port: 1}\n";
  {
    Daemon agent = StartAgent(dir_.Write("two.yaml", both), args);
    EXPECT_TRUE(BecomesListed("orders", {"a h:1 UNSPECIFIED", "b h:1 UNSPECIFIED"}));
    agent.Kill();
  }
  Daemon agent = StartAgent(
      dir_.Write("one.yaml", "services:\n- {name: orders, id: b, address: h, port: 1}\n"), args);
  EXPECT_TRUE(BecomesListed("orders", {"b h:1 UNSPECIFIED"}));
}

TEST_F(PodLifeTest, ASuccessorWithTheSameNameIsNotUnregisteredByTheOneBefore) {
  auto first = StartPod("orders-0", "uid-1", "10.0.0.1", "a.sock");
  EXPECT_EQ(At("a.sock", {"wait-ready"}).out, "ready\n");
  // Cut off, as on a node that does not answer; its pod is replaced elsewhere.
  first->Signal(SIGSTOP);
  auto second = StartPod("orders-0", "uid-2", "10.0.0.2", "b.sock");
  EXPECT_EQ(At("b.sock", {"wait-ready"}).out, "ready\n");
  auto watch = Watch();
  // The node comes back, and the old pod is stopped in peace.
  first->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return At("a.sock", {"status"}).status == 0; }));
  At("a.sock", {"drain"});
  first->Signal(SIGTERM);
  EXPECT_EQ(first->WaitForExit(), 0);
  EXPECT_THAT(ListedInShop(), HasSubstr("\"address\": \"10.0.0.2\""));
  ExpectNeverGone(watch.get(), "orders-0");
}

}  // namespace
}  // namespace failback
