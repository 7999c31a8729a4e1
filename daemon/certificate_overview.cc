#include "daemon/certificate_overview.h"

#include "registry/base/proto_time.h"

namespace failback {

void AddCertificates(const ServerSecurity& security, admin::v1::Overview* overview) {
  if (!security.encrypted()) return;
  *overview->mutable_certificate_not_after() = ToProto(security.certificate_not_after());
  if (!security.asks_clients()) return;
  const CertificateWatch::Summary seen = security.access()->certificates();
  admin::v1::ClientCertificates* const clients = overview->mutable_client_certificates();
  clients->set_seen(static_cast<int32_t>(seen.seen));
  clients->set_ending(static_cast<int32_t>(seen.ending));
  for (const CertificateWatch::Seen& one : seen.soonest) {
    admin::v1::ClientCertificate* const client = clients->add_soonest();
    client->set_name(one.name);
    client->set_host(one.host);
    *client->mutable_not_after() = ToProto(one.not_after);
    *client->mutable_seen() = ToProto(one.seen);
  }
}

}  // namespace failback
