// What operators see of the DNS server of a daemon.
//
// Thread safety: from any thread.

#ifndef FAILBACK_DAEMON_DNS_ADMIN_H_
#define FAILBACK_DAEMON_DNS_ADMIN_H_

#include "failback/admin/v1/admin.pb.h"
#include "gateway/dns/dns_server.h"
#include "registry/registry.h"

namespace failback {

// How it is. Nothing where there is none.
void AddDns(const dns::DnsServer* server, admin::v1::Overview* overview);

// What it answers about a name. UNIMPLEMENTED where there is none.
void ExplainDns(dns::DnsServer* server, const admin::v1::ExplainDnsNameRequest& request,
                Callback<admin::v1::DnsExplanation> done);

}  // namespace failback

#endif  // FAILBACK_DAEMON_DNS_ADMIN_H_
