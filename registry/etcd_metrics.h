// Metrics of a registry over etcd.

#ifndef FAILBACK_REGISTRY_ETCD_METRICS_H_
#define FAILBACK_REGISTRY_ETCD_METRICS_H_

#include "daemon/metrics/metric_families.h"
#include "registry/etcd/etcd_registry.h"

namespace failback {

void CollectEtcd(const EtcdRegistry::Statistics& stats, MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_METRICS_H_
