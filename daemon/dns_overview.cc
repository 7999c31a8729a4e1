#include "daemon/dns_overview.h"

#include <string>

namespace failback {

void AddDns(const dns::DnsServer* server, admin::v1::Overview* overview) {
  if (server == nullptr) return;
  const dns::DnsServer::Statistics statistics = server->Stats();
  admin::v1::DnsOverview& dns = *overview->mutable_dns();
  for (const std::string& address : server->addresses()) dns.add_addresses(address);
  dns.set_domain(server->domain());
  dns.set_queries(statistics.udp_queries + statistics.tcp_queries);
  dns.set_limited(statistics.limited);
  dns.set_truncated(statistics.truncated);
  dns.set_failures(statistics.serv_fail);
  dns.set_services(statistics.table.services);
  dns.set_absent_services(statistics.table.absent);
  dns.set_connections(statistics.connections);
}

}  // namespace failback
