#include "daemon/dns_admin.h"

#include <string>
#include <utility>

#include "registry/model/errors.h"

namespace failback {
namespace {

admin::v1::DnsExplanation ToProto(const dns::Explanation& explained) {
  admin::v1::DnsExplanation message;
  message.set_rcode(explained.rcode);
  message.set_reason(explained.reason);
  message.set_stale(explained.stale);
  for (const auto& record : explained.records) {
    admin::v1::DnsRecord& to = *message.add_records();
    to.set_type(record.type);
    to.set_data(record.data);
  }
  for (const auto& answer : explained.answers) {
    admin::v1::DnsAnswer& to = *message.add_answers();
    to.set_type(answer.type);
    to.set_records(static_cast<int32_t>(answer.records));
    to.set_plain_udp(static_cast<int32_t>(answer.plain_udp));
    to.set_udp(static_cast<int32_t>(answer.udp));
    to.set_tcp(static_cast<int32_t>(answer.tcp));
  }
  for (const auto& left : explained.left_out) {
    admin::v1::DnsLeftOut& to = *message.add_left_out();
    to.set_instance_id(left.id);
    to.set_endpoint(left.endpoint);
    to.set_reason(left.why);
  }
  message.set_total_left_out(static_cast<int32_t>(explained.total_left_out));
  return message;
}

}  // namespace

void AddDns(const dns::DnsServer* server, admin::v1::Overview* overview) {
  if (server == nullptr) return;
  const dns::DnsServer::Statistics statistics = server->Stats();
  admin::v1::DnsOverview& dns = *overview->mutable_dns();
  for (const std::string& address : server->addresses()) dns.add_addresses(address);
  dns.set_domain(server->domain());
  dns.set_zone(server->zone());
  dns.set_queries(statistics.udp_queries + statistics.tcp_queries);
  dns.set_limited(statistics.limited);
  dns.set_truncated(statistics.truncated);
  dns.set_failures(statistics.serv_fail);
  dns.set_answered(statistics.no_error - statistics.no_data);
  dns.set_no_data(statistics.no_data);
  dns.set_nx_domain(statistics.nx_domain);
  dns.set_refused(statistics.refused);
  dns.set_services(statistics.table.services);
  dns.set_absent_services(statistics.table.absent);
  dns.set_connections(statistics.connections);
}

void ExplainDns(dns::DnsServer* server, const admin::v1::ExplainDnsNameRequest& request,
                Callback<admin::v1::DnsExplanation> done) {
  if (server == nullptr) {
    return std::move(done)(Refusal(registry::v1::ERROR_REASON_UNSUPPORTED,
                                   "this daemon serves no DNS; --dns ADDRESS makes it"));
  }
  server->Explain(request.name(),
                  [done = std::move(done)](absl::StatusOr<dns::Explanation> explained) mutable {
                    if (!explained.ok()) return std::move(done)(explained.status());
                    std::move(done)(ToProto(*explained));
                  });
}

}  // namespace failback
