// The demo's story without any machine that must not fail: an etcd of three members, two registry
// servers, a sidecar. The leader of etcd and one server are killed on the way.
//
// Exits 0 when all of it held.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "agent/ctl/output.h"
#include "tests/demo/main/timeline.h"
#include "tests/registry/etcd/etcd_cluster.h"
#include "tests/util/daemons.h"
#include "tests/util/observed_states.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;
using Ids = std::vector<std::string>;

// A wait of the demo for anything; reached only when something is broken.
constexpr absl::Duration kPatience = absl::Seconds(30);

EtcdCluster::Options ThreeMembers() {
  EtcdCluster::Options options;
  options.members = 3;
  return options;
}

class Demo {
 public:
  explicit Demo(Timeline* timeline) : timeline_(*timeline), etcd_(ThreeMembers()) {}

  ~Demo() {
    if (printer_.joinable()) {
      subscriber_->Kill();
      printer_.join();
    }
  }

  bool Run() {
    return StartEverything() && KillTheLeader() && KillAServer() && KillEverythingElse() && Drain();
  }

 private:
  bool StartEverything() {
    timeline_.Chapter("An etcd of three members, two registries over it, a sidecar");
    timeline_.Event("start", absl::StrCat("etcd on ", absl::StrJoin(etcd_.endpoints(), ", ")));
    StartServer(0);
    StartServer(1);
    agent_ = std::make_unique<Daemon>(Daemon::Agent(
        absl::StrCat("grpc://", servers_[0]->address(), ",", servers_[1]->address()),
        {"--listen", absl::StrCat("unix:", dir_.File("agent.sock")), "--session-ttl", "5s"}));
    timeline_.Event("start", absl::StrCat("failback-agent, to the first of the two"));
    for (const char* id : {"orders-1", "orders-2", "orders-3"}) Register(id);
    subscriber_ = Process::Start(
        {CtlBinary(), "--target", servers_[1]->address(), "subscribe", "orders", "-o", "json"});
    printer_ = std::thread([this] { PrintEvents(); });
    return ExpectListed({"orders-1", "orders-2", "orders-3"}) &&
           ExpectSeen({"orders-1", "orders-2", "orders-3"});
  }

  bool KillTheLeader() {
    timeline_.Chapter("kill -9 the leader of etcd; a service registers, another goes");
    leader_ = etcd_.WaitForLeader();
    etcd_.Kill(leader_);
    timeline_.Event("kill -9", absl::StrCat("etcd ", etcd_.endpoints()[leader_], ", the leader"));
    const absl::Time start = absl::Now();
    Register("orders-4");
    Unregister("orders-1");
    const Ids expected = {"orders-2", "orders-3", "orders-4"};
    if (!ExpectListed(expected)) return false;
    timeline_.Event("recovered", absl::StrCat("in ", Milliseconds(absl::Now() - start)));
    return ExpectSeen({expected.begin(), expected.end()});
  }

  bool KillAServer() {
    timeline_.Chapter("kill -9 the registry that the agent talks to");
    const std::string session = SessionOfTheAgent();
    servers_[0]->Kill();
    timeline_.Event("kill -9", absl::StrCat("failback-registry on ", servers_[0]->address()));
    const absl::Time start = absl::Now();
    Register("orders-5");
    const Ids expected = {"orders-2", "orders-3", "orders-4", "orders-5"};
    if (!ExpectListed(expected)) return false;
    timeline_.Event("failover", absl::StrCat("in ", Milliseconds(absl::Now() - start)));
    return timeline_.Check(!session.empty() && SessionOfTheAgent() == session,
                           "the agent goes on in the same session, through the other registry") &&
           ExpectSeen({expected.begin(), expected.end()});
  }

  bool KillEverythingElse() {
    timeline_.Chapter("All of etcd is killed and comes back; meanwhile a service registers");
    for (int i = 0; i < etcd_.size(); ++i) {
      if (etcd_.running(i)) etcd_.Kill(i);
    }
    timeline_.Event("kill -9", "every member of etcd");
    Register("orders-6");
    const bool waits = Eventually([&] { return !PendingAt(agent_->address()).empty(); }, kPatience);
    timeline_.Event("pending", Ctl(agent_->address(), {"pending"}).out);
    if (!timeline_.Check(waits, "the agent keeps the intent, and tries again")) return false;
    const absl::Time start = absl::Now();
    for (int i = 0; i < etcd_.size(); ++i) etcd_.Start(i);
    timeline_.Event("start", "the three members of etcd, on the same data");
    const Ids expected = {"orders-2", "orders-3", "orders-4", "orders-5", "orders-6"};
    if (!ExpectListed(expected)) return false;
    timeline_.Event("recovered",
                    absl::StrCat("in ", Milliseconds(absl::Now() - start), ", election included"));
    return ExpectSeen({expected.begin(), expected.end()});
  }

  bool Drain() {
    timeline_.Chapter("The agent drains");
    const RunResult drain = Ctl(agent_->address(), {"drain"});
    timeline_.Event("drain", drain.out + drain.err);
    bool held = timeline_.Check(drain.status == 0, "the registry has acknowledged the drain");
    held &= ExpectListed({});
    for (const std::string id : {"orders-2", "orders-3", "orders-4", "orders-5", "orders-6"}) {
      desired_.Unregistered(id);
    }
    held &= ExpectSeen({});
    const std::vector<SubscribeResponse> events = ParseEvents(subscriber_->out());
    const absl::Status status = CheckSubscription(events, desired_);
    held &= timeline_.Check(
        status.ok(), status.ok()
                         ? absl::StrCat("the subscriber saw no state twice in a row and none that "
                                        "was never desired, in ",
                                        events.size(), " messages")
                         : absl::StrCat("the subscriber: ", std::string(status.message())));
    return held;
  }

  static std::string Milliseconds(absl::Duration duration) {
    return absl::StrCat(absl::ToInt64Milliseconds(duration), " ms");
  }

  void StartServer(int index) {
    servers_[index] = std::make_unique<Daemon>(Daemon::Registry(
        {"--store", etcd_.Uri("/demo"), "--listen",
         absl::StrCat("unix:", dir_.File(absl::StrCat("registry-", index + 1, ".sock")))}));
    timeline_.Event(
        "start", absl::StrCat("failback-registry on ", servers_[index]->address(), ", store etcd"));
  }

  void Register(const std::string& id) {
    ServiceInstance instance;
    instance.mutable_key()->set_service("orders");
    instance.mutable_key()->set_instance_id(id);
    instance.set_address("127.0.0.1");
    instance.set_port(9000);
    desired_.Registered(instance);
    const RunResult result = Ctl(agent_->address(), {"register", "orders", "--id", id, "--address",
                                                     "127.0.0.1", "--port", "9000"});
    timeline_.Event("register", result.out + result.err);
  }

  void Unregister(const std::string& id) {
    desired_.Unregistered(id);
    const RunResult result = Ctl(agent_->address(), {"unregister", "orders", "--id", id});
    timeline_.Event("unregister", result.out + result.err);
  }

  // Its key in etcd.
  std::string SessionOfTheAgent() const {
    return etcd_.Ctl({"get", "--prefix", "--keys-only", "/demo/v1/.session/"}).out;
  }

  // Until the second registry, which stays, lists exactly these.
  bool ExpectListed(const Ids& ids) {
    Ids listed;
    Eventually([&] { return (listed = ListedIds(servers_[1]->address(), "orders")) == ids; },
               kPatience);
    return timeline_.Check(
        listed == ids,
        absl::StrCat("the registry lists ",
                     listed.empty() ? "nothing" : absl::StrJoin(listed, ", "),
                     listed == ids ? "" : absl::StrCat("; expected ", absl::StrJoin(ids, ", "))));
  }

  bool ExpectSeen(const std::set<std::string>& ids) {
    ObservedStates observed;
    const bool seen = subscriber_->WaitForOutput(
        [&](const std::string& out) {
          observed = ObservedStates();
          for (const SubscribeResponse& event : ParseEvents(out)) {
            if (!observed.Apply(event).ok()) return false;
          }
          return observed.CurrentIds() == ids;
        },
        kPatience);
    return timeline_.Check(
        seen, absl::StrCat("the subscriber has ", absl::StrJoin(observed.CurrentIds(), ", ")));
  }

  void PrintEvents() {
    size_t printed = 0;
    const auto print_new = [&](const std::string& out) {
      const std::vector<SubscribeResponse> events = ParseEvents(out);
      for (; printed < events.size(); ++printed) {
        const std::string line = FormatEvent(events[printed], absl::Now());
        timeline_.Event("subscriber", line.substr(line.find("  ") + 2));
      }
      return false;
    };
    subscriber_->WaitForOutput(print_new, absl::InfiniteDuration());
  }

  Timeline& timeline_;
  EtcdCluster etcd_;
  int leader_ = 0;
  const TempDir dir_;
  std::unique_ptr<Daemon> servers_[2];
  std::unique_ptr<Daemon> agent_;
  std::unique_ptr<Process> subscriber_;
  std::thread printer_;
  DesiredHistory desired_;
};

int Main() {
  Timeline timeline(isatty(STDOUT_FILENO) != 0);
  bool held;
  {
    Demo demo(&timeline);
    held = demo.Run();
  }
  held = held && timeline.failures() == 0;
  std::printf("\n%s: %d of %d checks held, in %.1f s\n", held ? "etcd as the store" : "FAILED",
              timeline.checks() - timeline.failures(), timeline.checks(),
              absl::ToDoubleSeconds(timeline.elapsed()));
  return held ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main() { return failback::Main(); }
