// The main job on real processes: services stay registered through an outage of the registry.
//
// Starts a registry, a sidecar and three services, takes the registry away, changes what should be
// registered meanwhile, and checks that the list converges to exactly that, and that a subscriber
// saw nothing else. Exits 0 when all of it held.

#include <csignal>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/demo/main/stage.h"
#include "tests/demo/main/timeline.h"
#include "tests/util/daemons.h"
#include "tests/util/instances.h"
#include "tests/util/observed_states.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using agent::v1::PendingOperation;
using registry::v1::ServiceInstance;

using Ids = std::vector<std::string>;

// What handing an intent in may take, with the start of the process that does it.
constexpr absl::Duration kAtOnce = absl::Seconds(5);
// How long the registry keeps a service that died without a word; the shortest that it allows by
// default is 1 s.
constexpr int kTtlSeconds = 3;

std::string Milliseconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Milliseconds(duration), " ms");
}

class Demo {
 public:
  explicit Demo(Stage* stage) : timeline_(*stage->timeline()) { stage->OwnFolder(dir_.path()); }

  // Each step needs those before it, so the first that fails ends the demo.
  bool Run() {
    return StartEverything() && LoseTheRegistry() && BringItBack() && KillALibraryUser() && Drain();
  }

 private:
  struct Service {
    std::unique_ptr<Process> process;
    ServiceInstance instance;
  };

  bool StartEverything() {
    timeline_.Chapter("A registry, a sidecar, three services and a subscriber");
    StartRegistry();
    agent_ = std::make_unique<Daemon>(Daemon::Agent(
        registry_address_, {"--listen", absl::StrCat("unix:", dir_.File("agent.sock"))}));
    timeline_.Event("start", absl::StrCat("failback-agent on ", agent_->address()));

    StartService("orders-1", absl::StrCat("grpc://", registry_address_),
                 "with a session of its own");
    StartService("orders-2", agent_->address(), "through the sidecar");
    StartService("orders-3", agent_->address(), "through the sidecar");
    if (!ExpectListed({"orders-1", "orders-2", "orders-3"})) return false;

    subscriber_ = std::make_unique<DemoSubscriber>(&timeline_, agent_->address(), "orders");
    return subscriber_->ExpectSeen({"orders-1", "orders-2", "orders-3"});
  }

  bool LoseTheRegistry() {
    timeline_.Chapter("kill -9 the registry; two services register and one unregisters meanwhile");
    registry_->Kill();
    timeline_.Event("kill -9", "failback-registry");

    bool at_once = true;
    at_once &= RegisterByHand("orders-4", 9004);
    at_once &= RegisterByHand("orders-5", 9005);
    const absl::Time start = absl::Now();
    services_["orders-3"].process->Signal(SIGTERM);
    const bool stopped = services_["orders-3"].process->WaitForExit(kDemoPatience) == 0;
    desired_.Unregistered("orders-3");
    at_once &= timeline_.Check(
        stopped && absl::Now() - start < kAtOnce,
        absl::StrCat("orders-3 unregistered and stopped in ", Milliseconds(absl::Now() - start)));

    const Ids expected = {"register default/orders/orders-4", "register default/orders/orders-5",
                          "unregister default/orders/orders-3"};
    Ids waiting;
    Eventually(
        [&] {
          waiting.clear();
          for (const PendingOperation& row : PendingAt(agent_->address())) {
            const bool explained = row.state() == agent::v1::PENDING_STATE_WAITING &&
                                   row.times() >= 2 && row.has_next_attempt() &&
                                   row.last_status().code() != 0;
            const bool intent = row.kind() == agent::v1::OPERATION_KIND_REGISTER ||
                                row.kind() == agent::v1::OPERATION_KIND_UNREGISTER;
            if (explained && intent) waiting.push_back(row.id());
          }
          return waiting == expected;
        },
        kDemoPatience);
    timeline_.Event("pending",
                    absl::StrCat("failbackctl pending\n", Ctl(agent_->address(), {"pending"}).out));
    return timeline_.Check(
               waiting == expected,
               "the three wait on the wheel, with times, next attempt and last status") &&
           at_once;
  }

  bool BringItBack() {
    timeline_.Chapter("The registry starts again");
    const absl::Time start = absl::Now();
    StartRegistry();
    const Ids expected = {"orders-1", "orders-2", "orders-4", "orders-5"};
    if (!ExpectListed(expected)) return false;
    timeline_.Event("recovered", absl::StrCat("in ", Milliseconds(absl::Now() - start)));
    const bool settled =
        Eventually([&] { return PendingAt(agent_->address()).empty(); }, kDemoPatience);
    return timeline_.Check(settled, "nothing is pending any more") &&
           subscriber_->ExpectSeen({expected.begin(), expected.end()});
  }

  bool KillALibraryUser() {
    timeline_.Chapter("kill -9 the service that has a session of its own");
    services_["orders-1"].process->Kill();
    const absl::Time start = absl::Now();
    desired_.Unregistered("orders-1");
    timeline_.Event("kill -9", absl::StrCat("orders-1, whose lease is ", kTtlSeconds, " s"));
    const Ids expected = {"orders-2", "orders-4", "orders-5"};
    if (!ExpectListed(expected)) return false;
    const absl::Duration took = absl::Now() - start;
    // It was renewed up to a third of its length before the end; a busy machine renews later.
    const absl::Duration least = absl::Seconds(kTtlSeconds) / 3;
    return timeline_.Check(took >= least && took < absl::Seconds(kTtlSeconds) + kDemoPatience,
                           absl::StrCat("orders-1 vanished when its lease ended, after ",
                                        Milliseconds(took))) &&
           subscriber_->ExpectSeen({expected.begin(), expected.end()});
  }

  bool Drain() {
    timeline_.Chapter("The agent drains");
    const RunResult drain = Ctl(agent_->address(), {"drain"});
    timeline_.Event("drain", drain.out + drain.err);
    bool held = timeline_.Check(drain.status == 0, "the registry has acknowledged the drain");
    held &= ExpectListed({});
    held &= timeline_.Check(agent_->Stop() == 0 && registry_->Stop() == 0,
                            "agent and registry stopped on SIGTERM with status 0");
    // All that the subscriber was ever told.
    subscriber_->WaitForEnd();
    for (const std::string id : {"orders-2", "orders-4", "orders-5"}) desired_.Unregistered(id);
    held &= subscriber_->ExpectOrder(desired_);
    return held;
  }

  void StartRegistry() {
    std::vector<std::string> args = {"--store",
                                     absl::StrCat("sqlite://", dir_.File("registry.db"))};
    if (!registry_address_.empty()) args.insert(args.end(), {"--listen", registry_address_});
    registry_ = std::make_unique<Daemon>(Daemon::Registry(args));
    registry_address_ = registry_->address();
    timeline_.Event("start",
                    absl::StrCat("failback-registry on ", registry_address_, ", store ", args[1]));
  }

  // An example service, which registers itself by linking the agent.
  void StartService(const std::string& id, const std::string& registry, const std::string& how) {
    Service& service = services_[id];
    service.process =
        Process::Start({RunfilePath("examples/orders_server"), "--id", id, "--registry", registry,
                        "--ttl", std::to_string(kTtlSeconds)});
    const std::string marker = " serves on 127.0.0.1:";
    const auto line = service.process->WaitForLine(marker, kDemoPatience);
    uint32_t port = 0;
    if (!line || !absl::SimpleAtoi(line->substr(line->find(marker) + marker.size()), &port)) {
      Fatal(service.process->Describe());
    }
    Desire(id, "127.0.0.1", port);
    timeline_.Event("start", absl::StrCat(id, " on 127.0.0.1:", port, ", registers ", how));
  }

  // A service of which someone else takes care.
  bool RegisterByHand(const std::string& id, uint32_t port) {
    Desire(id, "127.0.0.1", port);
    const absl::Time start = absl::Now();
    const RunResult result = Ctl(agent_->address(), {"register", "orders", "--id", id, "--address",
                                                     "127.0.0.1", "--port", std::to_string(port)});
    const absl::Duration took = absl::Now() - start;
    timeline_.Event("register", result.out + result.err);
    return timeline_.Check(result.status == 0 && took < kAtOnce,
                           absl::StrCat("the call returned in ", Milliseconds(took)));
  }

  void Desire(const std::string& id, const std::string& address, uint32_t port) {
    ServiceInstance instance = MakeInstance("orders", id, port);
    instance.set_address(address);
    desired_.Registered(instance);
  }

  // Of the registry itself.
  bool ExpectListed(const Ids& ids) {
    return failback::ExpectListed(&timeline_, registry_address_, "orders", ids);
  }

  Timeline& timeline_;
  const TempDir dir_;
  std::string registry_address_;
  std::unique_ptr<Daemon> registry_;
  std::unique_ptr<Daemon> agent_;
  std::map<std::string, Service> services_;
  std::unique_ptr<DemoSubscriber> subscriber_;
  DesiredHistory desired_;
};

}  // namespace
}  // namespace failback

int main() {
  return failback::Stage::Run("The main job is done",
                              [](failback::Stage* stage) { return failback::Demo(stage).Run(); });
}
