// Metrics of the discovery service for stock gRPC clients.

#ifndef FAILBACK_DAEMON_METRICS_XDS_METRICS_H_
#define FAILBACK_DAEMON_METRICS_XDS_METRICS_H_

#include "daemon/metrics/metric_families.h"
#include "gateway/xds/ads_service.h"

namespace failback::xds {

void CollectXds(const AdsService::Statistics& stats, MetricFamilies* out);

}  // namespace failback::xds

#endif  // FAILBACK_DAEMON_METRICS_XDS_METRICS_H_
