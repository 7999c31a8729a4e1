// What AgentConfig means: checks that go beyond single keys, and what the agent makes of it.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_AGENT_AGENT_CONFIG_H_
#define FAILBACK_AGENT_AGENT_CONFIG_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/static_service_config.h"
#include "daemon/config.h"
#include "failback/agent/v1/config.pb.h"
#include "registry/failback/failback_registry.h"
#include "registry/registry.h"
#include "registry/upstream_scheme.h"

namespace failback {

// Checks what can be known without starting: addresses, the registry's URI, every static service.
// Returns those services. An error names the place in the file, the flag or the variable, through
// `loader`.
absl::StatusOr<std::vector<StaticServiceSpec>> ValidateAgentConfig(
    const agent::v1::AgentConfig& config, const ConfigLoader& loader);

// The options that come from the configuration; timer and callbacks are the caller's to set.
FailbackRegistry::Options ToFailbackOptions(const agent::v1::AgentConfig& config);

// The kinds of URI that a sidecar's registries may have, beside grpc and unix.
std::vector<SchemeFactory> SidecarSchemes();

}  // namespace failback

#endif  // FAILBACK_AGENT_AGENT_CONFIG_H_
