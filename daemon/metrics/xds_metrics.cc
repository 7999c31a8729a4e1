#include "daemon/metrics/xds_metrics.h"

namespace failback::xds {

void CollectXds(const AdsService::Statistics& stats, MetricFamilies* out) {
  out->Gauge("failback_xds_streams", "Discovery streams that are open.", stats.streams);
  out->Gauge("failback_xds_services", "Services that discovery clients follow, or have just now.",
             stats.cache.services);
  out->Gauge("failback_xds_unusable_instances",
             "Instances that discovery clients cannot get: their address is a host name.",
             stats.cache.unusable_instances);
  out->Counter("failback_xds_responses_total", "Responses sent.", stats.responses);
  out->Counter("failback_xds_acks_total", "Responses that a client has taken.", stats.acks);
  out->Counter("failback_xds_nacks_total", "Responses that a client has refused.", stats.nacks);
}

}  // namespace failback::xds
