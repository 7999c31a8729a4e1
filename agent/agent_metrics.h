// Metrics of what an agent has beside its registry: local sessions, the services that it registers
// for others, its configuration file.

#ifndef FAILBACK_AGENT_AGENT_METRICS_H_
#define FAILBACK_AGENT_AGENT_METRICS_H_

#include "agent/static_services.h"
#include "failback/agent/v1/agent.pb.h"
#include "registry/metrics/metric_families.h"

namespace failback {

// `status` as AgentService answers it.
void CollectAgent(const agent::v1::GetStatusResponse& status, MetricFamilies* out);

void CollectChecks(const StaticServiceSet::CheckCounters& counters, MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_AGENT_AGENT_METRICS_H_
