// The demo's story without any machine that must not fail: an etcd of three members, two registry
// servers, a sidecar. The leader of etcd and one server are killed on the way.
//
// Exits 0 when all of it held.

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tests/demo/main/stage.h"
#include "tests/demo/main/timeline.h"
#include "tests/registry/etcd/etcd_cluster.h"
#include "tests/util/daemons.h"
#include "tests/util/instances.h"
#include "tests/util/observed_states.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;
using Ids = std::vector<std::string>;

EtcdCluster::Options ThreeMembers() {
  EtcdCluster::Options options;
  options.members = 3;
  return options;
}

class Demo {
 public:
  explicit Demo(Stage* stage) : timeline_(*stage->timeline()), etcd_(ThreeMembers()) {
    stage->OwnFolder(dir_.path());
    stage->OwnFolder(etcd_.folder());
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
    subscriber_ = std::make_unique<DemoSubscriber>(&timeline_, servers_[1]->address(), "orders");
    return ExpectListed({"orders-1", "orders-2", "orders-3"}) &&
           subscriber_->ExpectSeen({"orders-1", "orders-2", "orders-3"});
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
    return subscriber_->ExpectSeen({expected.begin(), expected.end()});
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
           subscriber_->ExpectSeen({expected.begin(), expected.end()});
  }

  bool KillEverythingElse() {
    timeline_.Chapter("All of etcd is killed and comes back; meanwhile a service registers");
    for (int i = 0; i < etcd_.size(); ++i) {
      if (etcd_.running(i)) etcd_.Kill(i);
    }
    timeline_.Event("kill -9", "every member of etcd");
    Register("orders-6");
    const bool waits =
        Eventually([&] { return !PendingAt(agent_->address()).empty(); }, kDemoPatience);
    timeline_.Event("pending", Ctl(agent_->address(), {"pending"}).out);
    if (!timeline_.Check(waits, "the agent keeps the intent, and tries again")) return false;
    const absl::Time start = absl::Now();
    for (int i = 0; i < etcd_.size(); ++i) etcd_.Start(i);
    timeline_.Event("start", "the three members of etcd, on the same data");
    const Ids expected = {"orders-2", "orders-3", "orders-4", "orders-5", "orders-6"};
    if (!ExpectListed(expected)) return false;
    timeline_.Event("recovered",
                    absl::StrCat("in ", Milliseconds(absl::Now() - start), ", election included"));
    return subscriber_->ExpectSeen({expected.begin(), expected.end()});
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
    held &= subscriber_->ExpectSeen({});
    held &= subscriber_->ExpectOrder(desired_);
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
    ServiceInstance instance = MakeInstance("orders", id, 9000);
    instance.set_address("127.0.0.1");
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

  // Of the second registry, which stays.
  bool ExpectListed(const Ids& ids) {
    return failback::ExpectListed(&timeline_, servers_[1]->address(), "orders", ids);
  }

  Timeline& timeline_;
  EtcdCluster etcd_;
  int leader_ = 0;
  const TempDir dir_;
  std::unique_ptr<Daemon> servers_[2];
  std::unique_ptr<Daemon> agent_;
  std::unique_ptr<DemoSubscriber> subscriber_;
  DesiredHistory desired_;
};

}  // namespace
}  // namespace failback

int main() {
  return failback::Stage::Run("etcd as the store",
                              [](failback::Stage* stage) { return failback::Demo(stage).Run(); });
}
