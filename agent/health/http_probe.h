// Health checks over HTTP and HTTPS: a request is answered with the status that is expected.
//
// Host names are resolved again at each try. Addresses may also be Unix sockets.

#ifndef FAILBACK_AGENT_HEALTH_HTTP_PROBE_H_
#define FAILBACK_AGENT_HEALTH_HTTP_PROBE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/health/probe.h"
#include "registry/base/address.h"

namespace failback {

class IoThread;

// TLS 1.2 or 1.3.
struct HttpTls {
  // File of the authorities that are trusted, looked at again at each try; empty: the machine's.
  std::string ca;
  // In the certificate, and asked for; empty: the host of the address.
  std::string server_name;
  // Takes any certificate.
  bool skip_verify = false;
};

struct HttpQuestion {
  std::string method = "GET";
  std::string path = "/";
  // Empty: the address.
  std::string host;
  std::map<std::string, std::string> headers;
  // 0: 200 to 399.
  unsigned expect_status = 0;
  // Unset: plain text.
  std::optional<HttpTls> tls;
};

// `io` outlives the probe.
std::unique_ptr<Probe> NewHttpProbe(IoThread* io, const Address& address,
                                    const HttpQuestion& question);

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_HTTP_PROBE_H_
