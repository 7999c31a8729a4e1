// failback::Agent: a C++ program's own registry agent.
//
// Link `//:agent`, declare what you are and which services you follow, and stay registered: through
// restarts and outages of the registry, lost sessions and lost answers. Nothing here blocks and no
// thread of yours waits for the registry; what could not be carried yet is kept and tried again.
//
// Example:
//
//   failback::Agent::Options options;
//   options.registry = "grpc://127.0.0.1:7070";  // or a sidecar: "unix:/run/failback/agent.sock"
//   auto agent = failback::Agent::Create(options);
//   if (!agent.ok()) return Fail(agent.status());
//
//   failback::ServiceInstance me;
//   me.mutable_key()->set_service("orders");
//   me.mutable_key()->set_instance_id("orders-1");
//   me.set_address("10.0.0.7");
//   me.set_port(8080);
//   auto registration = (*agent)->Register(me);          // registered while this lives
//
//   auto payments = (*agent)->Subscribe("payments", [](const failback::ServiceSnapshot& now) {
//     for (const auto& instance : now.instances) Use(instance.address(), instance.port());
//   });
//
// A Registration unregisters when it is destroyed, a Subscription unsubscribes; the Agent, which is
// declared before them and so destroyed after, gives what they still owe a moment to
// arrive (Options::drain_deadline). What the registry has not acknowledged by then ends with the
// session's TTL.
//
// Thread safety: all methods of all classes here may be called from any thread, also from
// callbacks. Callbacks run on Options::executor, one at a time and in order for one handle.
// A handle may be destroyed anywhere, also in its own callback, and may outlive its agent.
//
// Invariants:
// 1. After a handle's destructor has returned its callback does not run; from within the callback
//    it returns at once and that call is the last.
// 2. A subscriber sees the newest state; states in between may be left out, and no state is
//    shown after a newer one of the same epoch.
//
// After fork() an agent and its handles are the parent's: in the child they do nothing. Calls are
// refused with FAILED_PRECONDITION, destructors return at once and unregister nothing, and what is
// registered stays the parent's. A child that needs an agent creates one after the fork.

#ifndef FAILBACK_AGENT_AGENT_H_
#define FAILBACK_AGENT_AGENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/client/upstream.h"
#include "registry/failback/failback_registry.h"
#include "registry/registry.h"
#include "retry/executor.h"
#include "retry/retry_rule.h"

namespace failback {

// The instances of a service at one moment.
struct ServiceSnapshot {
  // Those to be used first: healthy, then draining, then unhealthy; by key within.
  std::vector<ServiceInstance> instances;
  // The registry is unavailable; this is its last known state.
  bool stale = false;
  // Position in the registry's history; revisions of one epoch only grow.
  uint64_t epoch = 0;
  uint64_t revision = 0;
  // Not OK: the subscription has ended for good and this is the last call.
  absl::Status status;
};

namespace internal_agent {
class AgentImpl;
class RegistrationState;
class SubscriptionState;
}  // namespace internal_agent

// An instance that is registered as long as this lives.
class Registration {
 public:
  // Empty; every method is a no-op.
  Registration() = default;
  ~Registration();
  Registration(Registration&& other) noexcept;
  Registration& operator=(Registration&& other) noexcept;

  explicit operator bool() const { return state_ != nullptr; }

  // What is desired now, with the namespace filled in.
  ServiceInstance instance() const;

  // Changes weight, metadata, health, address or port, without a gap in the registry's list.
  // INVALID_ARGUMENT names a bad field, or the key if it is another one; nothing changes then.
  absl::Status Update(const ServiceInstance& instance);

  // Unregisters now instead of at destruction, and empties the handle.
  void Unregister();

  // Empties the handle without unregistering: the instance stays until the agent is destroyed.
  void Release();

 private:
  friend class Agent;
  explicit Registration(std::shared_ptr<internal_agent::RegistrationState> state);
  std::shared_ptr<internal_agent::RegistrationState> state_;
};

// A service that is followed as long as this lives.
class Subscription {
 public:
  Subscription() = default;
  ~Subscription();
  Subscription(Subscription&& other) noexcept;
  Subscription& operator=(Subscription&& other) noexcept;

  explicit operator bool() const { return state_ != nullptr; }

  // The newest state; empty and stale before the first.
  ServiceSnapshot Current() const;

 private:
  friend class Agent;
  explicit Subscription(std::shared_ptr<internal_agent::SubscriptionState> state);
  std::shared_ptr<internal_agent::SubscriptionState> state_;
};

class Agent {
 public:
  struct Options {
    // Where intents are carried: `grpc://host:port`, several addresses of one registry with commas,
    // or `unix:/path` of a sidecar.
    std::string registry = "grpc://127.0.0.1:7070";
    // In place of `registry`, several at once, each `[NAME=]URI`: every intent goes to all of them,
    // and its events say which one they are from (registry/failback/failback_group.h).
    std::vector<std::string> registries;
    // Further kinds of URI, as `{EtcdScheme}` of registry/etcd/etcd_uri.h (the target //:etcd) for
    // `etcd://`. Not known without, as it brings etcd's messages along, which a host may have
    // itself.
    std::vector<SchemeFactory> schemes;
    // TLS to the registry, by PEM files that are read again when they change. With `tls_ca` calls
    // are encrypted, and the registry has to show a certificate of one of these authorities; the
    // other two are what this process shows, if it does. docs/security.md
    std::string tls_ca;
    std::string tls_cert;
    std::string tls_key;
    // The name in the registry's certificate; empty: the host that is connected to.
    std::string tls_server_name;
    // Holds a bearer token to show to the registry, read again for each call; empty: none.
    std::string token_file;
    // For people: how the registry calls this process.
    std::string client_name;
    // Names this run of the process; empty: random.
    std::string incarnation;
    // How long the registry keeps the instances of this process after it died.
    absl::Duration session_ttl = absl::Seconds(10);
    RetryPolicy retry;
    // How often a registration that a later incarnation holds is tried again; zero: never.
    absl::Duration superseded_period = absl::Seconds(30);
    // How long the destructor waits for what is still owed; zero: not at all.
    absl::Duration drain_deadline = absl::Seconds(2);
    // Optional; outlives the agent. Where callbacks run. Default: one thread of the agent's own.
    Executor* executor = nullptr;
  };

  // What became of a registration: acknowledged, on the wheel, parked, superseded, cancelled; and of
  // the session (id is empty): lapsed, renewed.
  using EventCallback = std::function<void(const IntentEvent&)>;
  using SnapshotCallback = std::function<void(const ServiceSnapshot&)>;

  // INVALID_ARGUMENT names the option and what is allowed. Does not wait for the registry, which
  // may be unavailable.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(Options options);

  // Drains for at most `drain_deadline`.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Submits the intent that `instance` be registered. INVALID_ARGUMENT names a bad field;
  // FAILED_PRECONDITION while draining; RESOURCE_EXHAUSTED over the agent's bounds. A second
  // Registration of the same key takes it over from the first.
  absl::StatusOr<Registration> Register(const ServiceInstance& instance,
                                        EventCallback on_event = nullptr);

  // Follows the instances of a service, or those that `selector` means. The callback runs with each
  // new state, first with the one known already, if any. `upstream` names one of several
  // registries; empty: what all of them know, merged. Subscriptions of the same share one set: a
  // further one costs about a kilobyte, however large the set is.
  absl::StatusOr<Subscription> Subscribe(const std::string& service, SnapshotCallback callback);
  absl::StatusOr<Subscription> Subscribe(const Selector& selector, SnapshotCallback callback,
                                         const std::string& upstream = "");

  // Finds a service: Subscription::Current() has who is there now, the healthy ones first, with
  // weights and zones; the callback, if any, is notified of changes. A gRPC channel that follows
  // them is in agent/discovery_channel.h.
  absl::StatusOr<Subscription> Discover(const std::string& service,
                                        SnapshotCallback callback = nullptr) {
    return Subscribe(service, std::move(callback));
  }

  // Unregisters everything and takes nothing new; `done` runs when the registry has acknowledged,
  // or after `deadline`.
  void Drain(absl::Duration deadline, std::function<void(const agent::v1::DrainResponse&)> done);

  // How things stand at each registry, for health checks and diagnosis.
  std::vector<agent::v1::UpstreamStatus> Status() const;
  std::vector<agent::v1::PendingOperation> Pending() const;
  // What each of them was asked and how it answered, as numbers for the host's own metrics.
  std::vector<FailbackStatistics> Stats() const;

 private:
  explicit Agent(std::shared_ptr<internal_agent::AgentImpl> impl);
  const std::shared_ptr<internal_agent::AgentImpl> impl_;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_AGENT_H_
