// Metrics of the discovery service for stock gRPC clients.

#ifndef FAILBACK_XDS_XDS_METRICS_H_
#define FAILBACK_XDS_XDS_METRICS_H_

#include "registry/metrics/metric_families.h"
#include "xds/ads_service.h"

namespace failback::xds {

void CollectXds(const AdsService::Statistics& stats, MetricFamilies* out);

}  // namespace failback::xds

#endif  // FAILBACK_XDS_XDS_METRICS_H_
