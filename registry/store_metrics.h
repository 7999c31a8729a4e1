// Metrics of a registry over the embedded store.

#ifndef FAILBACK_REGISTRY_STORE_METRICS_H_
#define FAILBACK_REGISTRY_STORE_METRICS_H_

#include "daemon/metrics/metric_families.h"
#include "registry/store/store_registry.h"

namespace failback {

void CollectStore(const StoreRegistry::Statistics& stats, MetricFamilies* out);
void CollectAgents(const StoreRegistry::AgentCounts& agents, MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_METRICS_H_
