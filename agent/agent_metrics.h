// Metrics of what an agent has beside its registry: local sessions, the services that it registers
// for others, its configuration file.

#ifndef FAILBACK_AGENT_AGENT_METRICS_H_
#define FAILBACK_AGENT_AGENT_METRICS_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "agent/static_services.h"
#include "daemon/metrics/metric_families.h"
#include "failback/agent/v1/agent.pb.h"

namespace failback {

struct AgentSnapshot {
  int64_t local_sessions = 0;
  bool draining = false;
  // As StaticServiceSet reports them.
  std::vector<agent::v1::StaticServiceStatus> services;
  StaticServiceSet::CheckCounters checks;
  agent::v1::ConfigStatus config;
  // Of what the agent shows its registries; infinite: nothing.
  absl::Time certificate_not_after = absl::InfiniteFuture();
};
void CollectAgent(const AgentSnapshot& agent, MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_AGENT_AGENT_METRICS_H_
