// The certificates of a server and of its clients, in the overview of its daemon.
//
// Thread safety: as ServerSecurity's.

#ifndef FAILBACK_DAEMON_CERTIFICATE_OVERVIEW_H_
#define FAILBACK_DAEMON_CERTIFICATE_OVERVIEW_H_

#include "daemon/server_security.h"
#include "failback/admin/v1/admin.pb.h"

namespace failback {

void AddCertificates(const ServerSecurity& security, admin::v1::Overview* overview);

}  // namespace failback

#endif  // FAILBACK_DAEMON_CERTIFICATE_OVERVIEW_H_
