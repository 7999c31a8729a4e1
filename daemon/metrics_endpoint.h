// The metrics of a daemon: what both have, and the path at which they are scraped.
//
// Thread safety: as MetricsPage.

#ifndef FAILBACK_DAEMON_METRICS_ENDPOINT_H_
#define FAILBACK_DAEMON_METRICS_ENDPOINT_H_

#include <string>

#include "daemon/front_doors.h"
#include "daemon/metrics/metrics_page.h"
#include "daemon/server_security.h"
#include "gateway/dns/dns_server.h"
#include "gateway/http/server.h"
#include "gateway/xds/ads_service.h"
#include "registry/server/registry_server.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// What the metrics of both daemons come from. All outlive the page.
struct CommonMetricSources {
  std::string program;
  const HashedWheelTimer* timer = nullptr;
  const RegistryServer* server = nullptr;
  const ServerSecurity* security = nullptr;
  const xds::AdsService* xds = nullptr;
  const dns::DnsServer* dns = nullptr;  // null: none
  const FrontDoors* doors = nullptr;    // null: none
};
void AddCommonMetrics(const CommonMetricSources& sources, MetricsPage* page);

// Serves `page`, which outlives the server, at /metrics.
void AddMetricsRoute(const MetricsPage* page, http::Server* server);

}  // namespace failback

#endif  // FAILBACK_DAEMON_METRICS_ENDPOINT_H_
