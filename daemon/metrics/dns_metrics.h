// The metrics of the DNS server.

#ifndef FAILBACK_DAEMON_METRICS_DNS_METRICS_H_
#define FAILBACK_DAEMON_METRICS_DNS_METRICS_H_

#include "daemon/metrics/metric_families.h"
#include "gateway/dns/dns_server.h"

namespace failback::dns {

void CollectDns(const DnsServer::Statistics& stats, MetricFamilies* out);

}  // namespace failback::dns

#endif  // FAILBACK_DAEMON_METRICS_DNS_METRICS_H_
