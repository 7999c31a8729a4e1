// A registry, an agent, and what was asked of it: the ground that fault tests stand on.
//
//   client ── agent ── FaultProxy ── registry
//     │                                  │
//   intents, watcher                 what is true
//
// The registry is a real failback-registry, and the agent a real failback-agent, each on a Unix
// socket whose name stays theirs while they are away. A test states intents, breaks things, mends
// them, and asks for convergence:
//
//   Fleet fleet;
//   fleet.Register("a");
//   ASSERT_TRUE(fleet.Converged());
//   fleet.KillRegistry();
//   fleet.Unregister("a");
//   fleet.Register("b");
//   fleet.StartRegistry();
//   EXPECT_TRUE(fleet.Converged());
//
// Converged() waits until the registry lists exactly the last intents, the agent owes nothing and
// the watcher sees the same, not stale; and it checks what the watcher saw on the way
// (ObservedStates, DesiredHistory).
//
// Thread safety: intents may be stated from any thread, those of one id are serialized; the rest
// belongs to one thread.

#ifndef FAILBACK_TESTS_FAULT_FLEET_H_
#define FAILBACK_TESTS_FAULT_FLEET_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "registry/client/grpc_registry.h"
#include "registry/failback/failback_registry.h"
#include "registry/registry.h"
#include "registry/server/registry_server.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "tests/fault/fault_proxy.h"
#include "tests/fault/refusing_registry.h"
#include "tests/fault/watcher.h"
#include "tests/util/daemons.h"
#include "tests/util/observed_states.h"
#include "tests/util/process.h"

namespace failback {

// How long convergence may take before something is broken: no measure of speed.
inline constexpr absl::Duration kConvergence = absl::Seconds(60);

class Fleet {
 public:
  enum class RegistryKind {
    kProcess,
    // A StoreRegistry behind a RefusingRegistry, served in this process.
    kRefusing,
  };
  enum class AgentKind {
    kProcess,
    // A FailbackRegistry in this process, with `call_timeout`.
    kLibrary,
  };
  // Of a session that is to run out while the test waits: longer than a busy machine may keep an
  // agent from renewing.
  static constexpr absl::Duration kShortTtl = absl::Seconds(4);

  struct Options {
    RegistryKind registry = RegistryKind::kProcess;
    AgentKind agent = AgentKind::kProcess;
    // Of the agent's session. Where it is short, or the registry unheard of for longer, sessions
    // may lapse: MayLapse().
    absl::Duration ttl = absl::Seconds(10);
    // Of the library's calls; a real agent has the default.
    absl::Duration call_timeout = absl::Milliseconds(300);
    // With a watcher, which keeps every state it has seen: not for tens of thousands.
    bool watched = true;
    // Keeps its intents in a state directory.
    bool agent_has_state = false;
    std::vector<std::string> agent_args;
    std::vector<std::string> registry_args;
  };

  explicit Fleet(Options options);
  Fleet() : Fleet(Options()) {}
  ~Fleet();

  // --- Intents. Each returns when the agent has accepted it, which is at once; while the agent is
  // away it is stated again until it is accepted.
  void Register(const std::string& id, int port = 8080);
  void Unregister(const std::string& id);
  // "i-0" … in as few calls as can be.
  void RegisterMany(int count);
  void UnregisterMany(int count);
  // The agent's session may end in this test, with all that is registered in it.
  void MayLapse();

  // --- Faults.
  void StartRegistry();
  void KillRegistry();
  void PauseRegistry();
  void ContinueRegistry();
  // Gone with its store, and back with a new one.
  void RestartRegistryEmpty();
  // The store's files as they are now, of a registry that runs; and back to them (registry killed).
  void BackUpStore();
  void RestoreStore();
  void StartAgent();
  void KillAgent();
  FaultProxy& proxy() { return *proxy_; }
  RefusingRegistry& refusing() { return *refusing_; }

  // --- What is seen.
  // Waits for the last intents to be true everywhere. A failure says what is not.
  ::testing::AssertionResult Converged(absl::Duration timeout = kConvergence);
  // The whole of what the registry holds, by id; an error when it is unavailable.
  absl::StatusOr<std::map<std::string, InstanceRecord>> Listed();
  std::vector<agent::v1::PendingOperation> Pending();
  // Waits until the agent is in this state with its registry.
  bool WaitForUpstream(agent::v1::UpstreamState state);
  // Waits until the agent has tried something in vain, with this code or with any.
  bool WaitForFailure(std::optional<absl::StatusCode> code = std::nullopt);
  // Waits until a session of this TTL, opened now at a registry that nothing happens to, has
  // expired for want of renewals. So has then any that was not renewed meanwhile.
  void WaitForASessionToRunOut(absl::Duration ttl);
  // Operator's calls.
  void RetryAll();
  void CancelAll();

  // The agent, as its clients see it.
  Registry* client() { return client_; }
  Watcher& watcher() { return *watcher_; }
  Process& agent() { return agent_->process(); }
  Process& registry() { return registry_->process(); }
  bool has_agent() const { return agent_ != nullptr; }

 private:
  std::string RegistrySocket() const { return "unix:" + dir_.File("r.sock"); }
  std::string AgentSocket() const { return "unix:" + dir_.File("a.sock"); }
  struct Difference {
    // All is as intended, and nothing is owed.
    bool none() const { return content.empty() && unsettled.empty(); }

    std::string content;    // what the registry lists, or the watcher sees, that was not intended
    std::string unsettled;  // what cannot be told yet, or is still owed
  };
  Difference Compare();
  void State(const std::map<std::string, std::optional<int>>& ports);
  absl::StatusOr<agent::v1::UpstreamStatus> Upstream();

  const Options options_;
  const TempDir dir_;
  int store_number_ = 0;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<RefusingRegistry> refusing_;
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<Daemon> registry_;
  std::unique_ptr<FaultProxy> proxy_;
  std::unique_ptr<GrpcRegistry> truth_;
  std::unique_ptr<FailbackRegistry> library_;
  std::unique_ptr<Daemon> agent_;
  std::unique_ptr<GrpcRegistry> agent_client_;
  Registry* client_ = nullptr;
  std::unique_ptr<Watcher> watcher_;

  Mutex mu_;
  std::map<std::string, ServiceInstance> intents_ ABSL_GUARDED_BY(mu_);
  DesiredHistory history_ ABSL_GUARDED_BY(mu_);
  // One intent of an id at a time, by a hash of the id.
  Mutex id_locks_[64];
};

// Many threads that register, update and unregister the same few ids, until destroyed.
class Churn {
 public:
  Churn(Fleet* fleet, int threads, int ids, uint64_t seed);
  // As Stop().
  ~Churn();
  // Waits for the threads.
  void Stop();
  // Waits until so many more intents were accepted.
  void Go(int64_t intents);

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> count_{0};
  std::vector<std::thread> threads_;
};

// The seed of this run: FAILBACK_FAULT_SEED, or a new one. Printed.
uint64_t TestSeed();

}  // namespace failback

#endif  // FAILBACK_TESTS_FAULT_FLEET_H_
