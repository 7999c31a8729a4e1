#include "daemon/metrics_endpoint.h"

#include <utility>

#include "daemon/metrics/dns_metrics.h"
#include "daemon/metrics/http_metrics.h"
#include "daemon/metrics/process_metrics.h"
#include "daemon/metrics/server_metrics.h"
#include "daemon/metrics/xds_metrics.h"

namespace failback {

void AddCommonMetrics(const CommonMetricSources& sources, MetricsPage* page) {
  page->Add([sources](MetricFamilies* out) {
    CollectBuildInfo(sources.program, out);
    CollectProcess(out);
    CollectWheel(sources.timer->Stats(), out);
    CollectServer(sources.server->Stats(), out);
    const ServerSecurity& security = *sources.security;
    if (security.access() != nullptr) CollectAccess(security.access()->counters(), out);
    CollectCertificate(security.certificate_not_after(), out);
    if (security.asks_clients()) {
      CollectClientCertificates(security.access()->certificates(), out);
    }
    const ServerSecurity::Counters reloads = security.counters();
    CollectReloads("security", reloads.reloads, reloads.refused_reloads, out);
    xds::CollectXds(sources.xds->Stats(), out);
    if (sources.dns != nullptr) dns::CollectDns(sources.dns->Stats(), out);
    if (sources.doors != nullptr) http::CollectHttp(sources.doors->Stats(), out);
  });
}

void AddMetricsRoute(const MetricsPage* page, http::Server* server) {
  server->Handle("GET", "/metrics", [page](const http::Request&, http::Responder respond) {
    http::Response response;
    response.content_type = MetricsPage::kContentType;
    response.body = page->Render();
    std::move(respond)(std::move(response));
  });
}

}  // namespace failback
