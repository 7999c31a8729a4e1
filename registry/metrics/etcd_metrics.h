// Metrics of a registry over etcd.

#ifndef FAILBACK_REGISTRY_METRICS_ETCD_METRICS_H_
#define FAILBACK_REGISTRY_METRICS_ETCD_METRICS_H_

#include "registry/etcd/etcd_registry.h"
#include "registry/metrics/metric_families.h"

namespace failback {

void CollectEtcd(const EtcdRegistry::Statistics& stats, MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_METRICS_ETCD_METRICS_H_
