#include "daemon/metrics/http_metrics.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace failback::http {

void CollectHttp(const FrontDoorStatistics& stats, MetricFamilies* out) {
  for (const FrontDoorStatistics::Listener& listener : stats.listeners) {
    const Server::Statistics& server = listener.server;
    for (size_t i = 0; i < server.responses.size(); ++i) {
      out->Counter("failback_http_responses_total", "Responses, by the class of their status.",
                   static_cast<double>(server.responses[i]),
                   {{"listener", listener.name}, {"code", absl::StrCat(i + 1, "xx")}});
    }
    const auto count = [&](const char* name, const char* help, int64_t value) {
      out->Counter(name, help, static_cast<double>(value), {{"listener", listener.name}});
    };
    const auto gauge = [&](const char* name, const char* help, int64_t value) {
      out->Gauge(name, help, static_cast<double>(value), {{"listener", listener.name}});
    };
    count("failback_http_requests_total", "Whole requests that have come.", server.requests);
    count("failback_http_refused_total",
          "Requests refused before their path was looked at: malformed, too large, or of a caller "
          "or a site that may not come.",
          server.refused);
    count("failback_http_slow_closed_total",
          "Connections closed because their client did not send or read in time.",
          server.slow_closed);
    count("failback_http_made_room_total",
          "Connections closed, or waits ended early, as there were http.max_connections.",
          server.made_room);
    gauge("failback_http_connections", "Connections that are open.", server.connections);
    gauge("failback_http_parked", "Requests that wait for their answer, and streams.",
          server.parked);
    gauge("failback_http_live_instances",
          "Instances registered through this listener that live on renewals.",
          listener.live_instances);
    out->Histogram(
        "failback_http_request_duration_seconds",
        "From a whole request to its answer: of a long poll as long as it waits; streams "
        "left out.",
        server.duration_nanos, MetricFamilies::kNanosPerSecond, {{"listener", listener.name}});
  }
  out->Gauge("failback_http_services", "Services that are followed for clients over HTTP.",
             static_cast<double>(stats.services));
  out->Counter("failback_http_services_evicted_total",
               "Services of these that had to make room for others.",
               static_cast<double>(stats.evicted));
}

}  // namespace failback::http
