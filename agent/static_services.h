// Services that the agent registers for programs that do not do it themselves, kept in step with
// how the programs are.
//
// Each service is an intent at a Registry (the agent's own FailbackRegistry), and its checks say
// which: unhealthy until every check has passed, healthy while all pass, and where the
// configuration asks for it, not registered before that nor after being critical for too long.
// What a check finds changes the intent at once; carrying it to the registry is the
// Registry's job.
//
// The intents live in a local session of a fixed name. An agent that starts again with its journal
// claims them, and withdraws those that its configuration no longer has.
//
//   auto services = StaticServiceSet::Start(options, *StaticServices(config, loader));
//   services->Apply(*StaticServices(new_config, loader));     // after a reload
//
// Thread safety: all methods from any thread, but for the destructor. No lock is held during
// calls of the registry, which are made one at a time and in order.

#ifndef FAILBACK_AGENT_STATIC_SERVICES_H_
#define FAILBACK_AGENT_STATIC_SERVICES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/health/probe.h"
#include "agent/static_service_config.h"
#include "failback/agent/v1/agent.pb.h"
#include "registry/registry.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// The incarnation of the local session, as `failbackctl list` at the agent shows it.
inline constexpr char kStaticServicesIncarnation[] = "static-services";

class StaticServiceSet {
 public:
  struct Options {
    // Both required; they outlive the set.
    HashedWheelTimer* timer = nullptr;
    Registry* registry = nullptr;
    // Makes the probe of a check; null for `ttl`. Default: NewProbe() over sockets and processes.
    std::function<std::unique_ptr<Probe>(const agent::v1::HealthCheck&)> new_probe;
    // Claims the intents of an earlier process, if there were any: with a state directory.
    bool claim_earlier = false;
  };

  static std::unique_ptr<StaticServiceSet> Start(Options options,
                                                 const std::vector<StaticServiceSpec>& specs);
  // Stops the checks. The intents stay: they end with the registry's drain, or its process.
  ~StaticServiceSet();
  StaticServiceSet(const StaticServiceSet&) = delete;
  StaticServiceSet& operator=(const StaticServiceSet&) = delete;

  // From now on these are the services. What is gone is unregistered, what has changed is updated
  // without a gap, and checks that are the same go on as they are.
  void Apply(const std::vector<StaticServiceSpec>& specs);

  // Whether the caller of Report may speak for an instance. Must not block or call back.
  using MayReport = std::function<bool(const InstanceKey&)>;

  // What a program says of itself. NOT_FOUND or INVALID_ARGUMENT name the field. Returns the
  // service's state over all its checks. What `may_report`, if given, refuses is as good as not
  // configured: it has the same answer, and no error names it.
  absl::StatusOr<agent::v1::CheckState> Report(const agent::v1::ReportHealthRequest& request,
                                               const MayReport& may_report = nullptr);

  // The services that have checks, in the order of the configuration.
  std::vector<agent::v1::StaticServiceStatus> Status() const;

  // Whether they hold a local session, which is then one of the registry's.
  bool has_session() const;

  // Tries by the kind of check, those of checks that are no more included.
  struct CheckCounter {
    uint64_t passes = 0;
    uint64_t failures = 0;
  };
  using CheckCounters = std::map<std::string, CheckCounter>;
  CheckCounters Counters() const;

 private:
  class Core;
  explicit StaticServiceSet(std::shared_ptr<Core> core);
  const std::shared_ptr<Core> core_;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_STATIC_SERVICES_H_
