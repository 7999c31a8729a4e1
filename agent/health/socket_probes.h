// Health checks on plain sockets: a TCP connection is accepted.
//
// Host names are resolved again at each try. Addresses may also be Unix sockets.

#ifndef FAILBACK_AGENT_HEALTH_SOCKET_PROBES_H_
#define FAILBACK_AGENT_HEALTH_SOCKET_PROBES_H_

#include <memory>

#include "agent/health/probe.h"
#include "registry/base/address.h"

namespace failback {

class IoThread;

// `io` outlives the probe.
std::unique_ptr<Probe> NewTcpProbe(IoThread* io, const Address& address);

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_SOCKET_PROBES_H_
