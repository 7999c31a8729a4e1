// Metrics that both daemons have: the wheel, the gRPC server, who was refused, certificates and
// configuration.

#ifndef FAILBACK_DAEMON_METRICS_SERVER_METRICS_H_
#define FAILBACK_DAEMON_METRICS_SERVER_METRICS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "daemon/metrics/metric_families.h"
#include "registry/security/access_control.h"
#include "registry/security/certificate_expiry.h"
#include "registry/server/registry_server.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

void CollectWheel(const HashedWheelTimer::Statistics& stats, MetricFamilies* out);

void CollectServer(const RegistryServer::Statistics& stats, MetricFamilies* out);

void CollectAccess(const AccessControl::Counters& counters, MetricFamilies* out);

// When the certificate that the server shows ends; infinite: it shows none, nothing is added.
void CollectCertificate(absl::Time not_after, MetricFamilies* out);

// What clients have shown lately.
void CollectClientCertificates(const CertificateWatch::Summary& seen, MetricFamilies* out);

// Changed files that were taken, and that were refused. `source` is what they are, as `config`.
void CollectReloads(const std::string& source, int64_t taken, int64_t refused, MetricFamilies* out);

}  // namespace failback

#endif  // FAILBACK_DAEMON_METRICS_SERVER_METRICS_H_
