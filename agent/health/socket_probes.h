// Health checks on plain sockets: a TCP connection is accepted, an HTTP request is answered.
//
// Host names are resolved anew at each try. Addresses may also be Unix sockets.

#ifndef FAILBACK_AGENT_HEALTH_SOCKET_PROBES_H_
#define FAILBACK_AGENT_HEALTH_SOCKET_PROBES_H_

#include <map>
#include <memory>
#include <string>

#include "agent/health/probe.h"
#include "registry/address.h"

namespace failback {

class IoThread;

// `io` outlives the probe.
std::unique_ptr<Probe> NewTcpProbe(IoThread* io, const Address& address);

struct HttpQuestion {
  std::string method = "GET";
  std::string path = "/";
  // Empty: the address.
  std::string host;
  std::map<std::string, std::string> headers;
  // 0: 200 to 399.
  unsigned expect_status = 0;
};

std::unique_ptr<Probe> NewHttpProbe(IoThread* io, const Address& address,
                                    const HttpQuestion& question);

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_SOCKET_PROBES_H_
