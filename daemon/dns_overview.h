// How the DNS server of a daemon is, for its overview.
//
// Thread safety: from any thread.

#ifndef FAILBACK_DAEMON_DNS_OVERVIEW_H_
#define FAILBACK_DAEMON_DNS_OVERVIEW_H_

#include "failback/admin/v1/admin.pb.h"
#include "gateway/dns/dns_server.h"

namespace failback {

// Nothing where there is none.
void AddDns(const dns::DnsServer* server, admin::v1::Overview* overview);

}  // namespace failback

#endif  // FAILBACK_DAEMON_DNS_OVERVIEW_H_
