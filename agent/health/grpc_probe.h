// A health check through grpc.health.v1.

#ifndef FAILBACK_AGENT_HEALTH_GRPC_PROBE_H_
#define FAILBACK_AGENT_HEALTH_GRPC_PROBE_H_

#include <memory>
#include <string>

#include "agent/health/probe.h"
#include "registry/base/address.h"

namespace failback {

// Asks the server at `address` for `service`, or for itself if that is empty. One connection is
// kept; the probe may be destroyed at any time.
std::unique_ptr<Probe> NewGrpcProbe(const Address& address, const std::string& service);

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_GRPC_PROBE_H_
