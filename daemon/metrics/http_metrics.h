// The metrics of the listeners over HTTP: the front doors.

#ifndef FAILBACK_DAEMON_METRICS_HTTP_METRICS_H_
#define FAILBACK_DAEMON_METRICS_HTTP_METRICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/metrics/metric_families.h"
#include "gateway/http/server.h"

namespace failback::http {

struct FrontDoorStatistics {
  struct Listener {
    std::string name;  // "http", "consul", "eureka"
    Server::Statistics server;
    int64_t live_instances = 0;  // registered through it, that live on renewals
  };
  std::vector<Listener> listeners;
  int64_t services = 0;  // that are followed for their clients
  int64_t evicted = 0;   // of these: that had to make room
};

void CollectHttp(const FrontDoorStatistics& stats, MetricFamilies* out);

}  // namespace failback::http

#endif  // FAILBACK_DAEMON_METRICS_HTTP_METRICS_H_
