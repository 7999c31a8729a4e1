// The services of the configuration: what each key means, and what is wrong with it.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_AGENT_STATIC_SERVICE_CONFIG_H_
#define FAILBACK_AGENT_STATIC_SERVICE_CONFIG_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/health/health_checker.h"
#include "daemon/config.h"
#include "failback/agent/v1/config.pb.h"
#include "registry/registry.h"

namespace failback {

// A service that the agent registers, with every default filled in.
struct StaticServiceSpec {
  ServiceInstance instance;
  // Names and addresses filled in; every address can be parsed.
  std::vector<agent::v1::HealthCheck> checks;
  bool register_when_healthy = false;
  absl::Duration deregister_critical_after = absl::InfiniteDuration();
};

// `tcp`, `http`, `grpc`, `command`, `ttl`; empty when none is set.
std::string CheckKind(const agent::v1::HealthCheck& check);

// Interval, timeout, rise and fall of a check, defaults filled in.
HealthChecker::Options CheckOptions(const agent::v1::HealthCheck& check);

// All services, in the order of the file. An error names the place in the file.
absl::StatusOr<std::vector<StaticServiceSpec>> StaticServices(const agent::v1::AgentConfig& config,
                                                              const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_AGENT_STATIC_SERVICE_CONFIG_H_
