// What the Consul door has of an agent: its probes, which run the HTTP, TCP and gRPC checks of
// Consul clients, and what it carries.
//
//   std::unique_ptr<consul::CheckRunner> runner = NewConsulCheckRunner(timer.get());
//   auto running = runner->Run(check, [](consul::CheckStatus status, const std::string& why) { … });
//
// Thread safety: as consul::CheckRunner.

#ifndef FAILBACK_AGENT_CONSUL_CHECKS_H_
#define FAILBACK_AGENT_CONSUL_CHECKS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "failback/agent/v1/config.pb.h"
#include "gateway/consul/check_runner.h"
#include "registry/failback/carried_record.h"
#include "registry/model/messages.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// `timer` outlives the runner, and that its checks.
std::unique_ptr<consul::CheckRunner> NewConsulCheckRunner(HashedWheelTimer* timer);

// The keys of what is carried under this instance id, each once. `carried` is sorted by key.
std::vector<InstanceKey> KeysWithId(const std::vector<CarriedRecord>& carried,
                                    const std::string& id);

// The agent's own check that is the same. INVALID_ARGUMENT names what it cannot be.
absl::StatusOr<agent::v1::HealthCheck> ToHealthCheck(const consul::CheckDefinition& check);

}  // namespace failback

#endif  // FAILBACK_AGENT_CONSUL_CHECKS_H_
