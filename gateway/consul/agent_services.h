// The services that clients of Consul have registered at this agent, with their checks.
//
// Consul knows a service at an agent by its id alone. So does this table: a registration under an
// id takes the place of the one before, also where it is of another service. What is in it is put
// through an InstanceWriter: with a TTL check in a session of that TTL, else detached, so that it
// goes on until it is unregistered. The worst of the checks decides how the instance is.
//
// A TTL check that is not renewed in time ends the session, and the instance goes. Its client may
// renew it again for an hour, or for `DeregisterCriticalServiceAfter`, and it is registered again,
// as in Consul; after that the answer is 404, and the client registers again. A service whose probes
// fail for `DeregisterCriticalServiceAfter` is unregistered.
//
// With a ServiceFolder the table, and each check as it is, comes back with the agent: probes begin
// again, and a TTL check has its whole TTL once more. The instances come back by the agent's intents,
// not by this; of one without a TTL that has no intent any more nothing comes back. Without a folder
// clients have to register again.
//
// Example:
//
//   services.Register(request.caller, "default", *service, [](absl::Status status) { … });
//   services.ReportCheck(request.caller, "service:o1", CheckStatus::kPassing, "", done);
//
// Thread safety: all methods from any thread. Callbacks run once, without locks. The timer and the
// writer outlive it, but for answers of the writer's that say it has ended.

#ifndef FAILBACK_GATEWAY_CONSUL_AGENT_SERVICES_H_
#define FAILBACK_GATEWAY_CONSUL_AGENT_SERVICES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gateway/consul/check_runner.h"
#include "gateway/consul/definition.h"
#include "gateway/consul/kept_service.h"
#include "gateway/door/instance_writer.h"
#include "registry/model/messages.h"
#include "registry/security/identity.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "retry/periodic_task.h"

namespace failback::consul {

class AgentServices : public std::enable_shared_from_this<AgentServices> {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  struct Options {
    // Required; they outlive this.
    HashedWheelTimer* timer = nullptr;
    InstanceWriter* writer = nullptr;
    // Null: checks other than TTL are refused.
    CheckRunner* runner = nullptr;
    // For services that name none; empty: they have to.
    std::string own_address;
    // What this agent carries under an id and this table does not know: it was put before the agent
    // started. Null: nothing.
    std::function<std::vector<InstanceKey>(const std::string& id)> carried = nullptr;
    // Null: nothing is kept. It outlives Stop.
    ServiceFolder* folder = nullptr;
    // Whether this agent carries an instance: it is asked for what the folder has, at the beginning.
    std::function<bool(const InstanceKey&)> carries = nullptr;
    // Whether a caller may change a service; null: every one may.
    std::function<absl::Status(const Identity&, const InstanceKey&)> may_change = nullptr;
    // Half of them for one caller, where callers have names.
    size_t max_services = 10000;
  };

  // How a check of a service is.
  struct CheckState {
    CheckDefinition definition;
    CheckStatus status = CheckStatus::kCritical;
    std::string output;
  };
  struct Shown {
    ServiceInstance instance;
    std::vector<CheckState> checks;
    bool maintenance = false;
    std::string reason;   // of the maintenance
    bool lapsed = false;  // its TTL check was not renewed
  };

  // Answers that come after Stop find it still there: it is shared with them.
  static std::shared_ptr<AgentServices> Create(Options options);
  // Ends the probes and forgets all. What is registered stays so.
  void Stop();
  AgentServices(const AgentServices&) = delete;
  AgentServices& operator=(const AgentServices&) = delete;

  // Errors: INVALID_ARGUMENT, and those of InstanceWriter.
  void Register(const Identity& caller, const std::string& name_space,
                const ServiceDefinition& service, Done done);
  // NOT_FOUND for an id that is not known.
  void Deregister(const Identity& caller, const std::string& id, Done done);
  // Adds a check to a service, or replaces the one of its id.
  void RegisterCheck(const Identity& caller, const CheckDefinition& check, Done done);
  void DeregisterCheck(const Identity& caller, const std::string& id, Done done);
  // Of a TTL check: how it is now; renews it.
  void ReportCheck(const Identity& caller, const std::string& id, CheckStatus status,
                   const std::string& output, Done done);
  // Takes a service out of rotation, or back. `reason` is for people.
  void SetMaintenance(const Identity& caller, const std::string& id, bool enable,
                      const std::string& reason, Done done);

  // By id.
  std::map<std::string, Shown> Look() const;

 private:
  struct Check {
    CheckState state;
    std::unique_ptr<RunningCheck> running;  // null: of a TTL check, or not begun
  };
  struct Service {
    ServiceDefinition definition;
    std::string name_space;
    Identity owner;
    std::vector<Check> checks;
    InstanceKey key;
    bool maintenance = false;
    std::string reason;
    absl::Duration ttl;  // zero: it has no TTL check
    absl::Duration deregister_after;
    int64_t renewed_nanos = 0;
    int64_t critical_nanos = 0;  // since when it is; 0: it is not
  };
  using ServicePtr = std::shared_ptr<Service>;
  using Services = std::map<std::string, ServicePtr>;

  explicit AgentServices(Options options) : options_(std::move(options)) {}

  // Takes over what the folder has.
  void Restore();
  // Nullopt: it does not come back.
  std::optional<ServicePtr> Restored(const std::string& text) const;
  // Puts a service into the folder as it is now.
  void Keep(const Service& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(const Service& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  static CheckStatus StatusOf(const Service& service);
  // Gives checks that have none an id, and takes the TTL out of them.
  static absl::Status Complete(Service* service);
  // INVALID_ARGUMENT for a check that this agent cannot run.
  absl::Status ValidateChecks(const Service& service) const;
  absl::StatusOr<ServiceInstance> InstanceOf(const Service& service) const;
  bool HasLapsed(const Service& service) const;

  // Puts `service` in the place of what is there under its id.
  void Replace(const Identity& caller, const ServicePtr& service, Done done);
  // After the answer to its Put.
  absl::Status Placed(const ServicePtr& service, ServicePtr before, absl::Status status);
  // Takes back what was registered with a shorter TTL than it asked for.
  absl::Status TtlIsTooLong(const Service& service, absl::Duration most) const;
  void StartProbes(const ServicePtr& service);
  // Puts the instance of a service as the table has it.
  void PutAgain(const Identity& caller, const ServicePtr& service, Done done);
  void OnProbe(const std::weak_ptr<Service>& service, size_t check, CheckStatus status,
               const std::string& output);
  // Takes over what a check says; whether that has changed how the instance is.
  bool Note(CheckStatus status, const std::string& output, Check* check, Service* service)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The service with a check of this id, and the check's place; null: there is none.
  ServicePtr FindCheck(const std::string& id, size_t* place) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why there is no place for one more of this caller's.
  absl::Status CheckPlaces(const Identity& caller) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ServicePtr Find(const std::string& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status MayChange(const Identity& caller, const Service& service) const {
    return options_.may_change == nullptr ? absl::OkStatus()
                                          : options_.may_change(caller, service.key);
  }
  // `unknown` where it is null, and for who may not change it: whether it is here is not for them to
  // learn.
  absl::Status Hidden(const Identity& caller, const Service* service,
                      const absl::Status& unknown) const {
    return service != nullptr && MayChange(caller, *service).ok() ? absl::OkStatus() : unknown;
  }
  // The same registration with other checks.
  static ServicePtr CopyOf(const Service& service);
  void Remove(const Identity& caller, const ServicePtr& service, Done done);
  void Sweep();

  const Options options_;

  mutable Mutex mu_;
  Services services_ ABSL_GUARDED_BY(mu_);  // by id; what they refer to is guarded too
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<PeriodicTask> sweep_;
};

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_AGENT_SERVICES_H_
