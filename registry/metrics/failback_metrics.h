// Metrics of a FailbackRegistry, or of each of a group: what should be registered, what is, and how
// the attempts go.

#ifndef FAILBACK_REGISTRY_METRICS_FAILBACK_METRICS_H_
#define FAILBACK_REGISTRY_METRICS_FAILBACK_METRICS_H_

#include "registry/failback_statistics.h"
#include "registry/metrics/metric_families.h"

namespace failback {

// Each series has the label `upstream`.
void CollectFailback(const FailbackStatistics& stats, MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_METRICS_FAILBACK_METRICS_H_
