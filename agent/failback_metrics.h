// Metrics of a FailbackRegistry, or of each of a group: what should be registered, what is, and how
// the attempts go.

#ifndef FAILBACK_AGENT_FAILBACK_METRICS_H_
#define FAILBACK_AGENT_FAILBACK_METRICS_H_

#include "daemon/metrics/metric_families.h"
#include "registry/failback/failback_statistics.h"

namespace failback {

// Each series has the label `upstream`.
void CollectFailback(const FailbackStatistics& stats, MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_AGENT_FAILBACK_METRICS_H_
