#include "daemon/metrics/dns_metrics.h"

#include <cstdint>

namespace failback::dns {

void CollectDns(const DnsServer::Statistics& stats, MetricFamilies* out) {
  const struct {
    const char* protocol;
    int64_t queries;
  } kQueries[] = {{"udp", stats.udp_queries}, {"tcp", stats.tcp_queries}};
  for (const auto& [protocol, queries] : kQueries) {
    out->Counter("failback_dns_queries_total", "Queries that have come.",
                 static_cast<double>(queries), {{"protocol", protocol}});
  }
  const struct {
    const char* code;
    int64_t responses;
  } kResponses[] = {{"NOERROR", stats.no_error - stats.no_data},
                    {"NODATA", stats.no_data},
                    {"NXDOMAIN", stats.nx_domain},
                    {"SERVFAIL", stats.serv_fail},
                    {"REFUSED", stats.refused},
                    {"other", stats.other}};
  for (const auto& [code, responses] : kResponses) {
    out->Counter("failback_dns_responses_total", "Responses made, by what they say.",
                 static_cast<double>(responses), {{"code", code}});
  }
  const auto count = [out](const char* name, const char* help, int64_t value) {
    out->Counter(name, help, static_cast<double>(value));
  };
  const auto gauge = [out](const char* name, const char* help, int64_t value) {
    out->Gauge(name, help, static_cast<double>(value));
  };
  count("failback_dns_truncated_total", "Responses that were shortened to fit in UDP.",
        stats.truncated);
  count("failback_dns_limited_total", "Queries beyond dns.responses_per_second of their network.",
        stats.limited);
  count("failback_dns_ignored_total", "Packets that are no queries.", stats.ignored);
  gauge("failback_dns_waiting", "Queries that wait for the registry.", stats.waiting);
  gauge("failback_dns_connections", "Connections that are open.", stats.connections);
  count("failback_dns_connections_closed_total", "Connections that had to make room.",
        stats.closed_connections);
  gauge("failback_dns_services", "Services that are followed, as they were asked for.",
        stats.table.services);
  gauge("failback_dns_absent_services", "Services of these that have never had an instance.",
        stats.table.absent);
  count("failback_dns_services_evicted_total", "Services that had to make room for others.",
        stats.table.evicted);
  count("failback_dns_names_refused_total", "New names that came too fast to be looked up.",
        stats.table.refused_names);
}

}  // namespace failback::dns
