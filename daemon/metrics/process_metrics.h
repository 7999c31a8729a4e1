// Metrics of the process itself, with the names that Prometheus's client libraries give them, and
// which build of which program it is.

#ifndef FAILBACK_DAEMON_METRICS_PROCESS_METRICS_H_
#define FAILBACK_DAEMON_METRICS_PROCESS_METRICS_H_

#include <string>

#include "daemon/metrics/metric_families.h"

namespace failback {

// `program` as `failback-agent`.
void CollectBuildInfo(const std::string& program, MetricFamilies* out);

// What /proc reports; what it does not report is left out.
void CollectProcess(MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_DAEMON_METRICS_PROCESS_METRICS_H_
