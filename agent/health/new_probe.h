// The probe that a configured check means.

#ifndef FAILBACK_AGENT_HEALTH_NEW_PROBE_H_
#define FAILBACK_AGENT_HEALTH_NEW_PROBE_H_

#include <memory>

#include "agent/health/probe.h"
#include "failback/agent/v1/config.pb.h"

namespace failback {

class IoThread;

// Of a check that is valid and has its address filled in, and is not of kind `ttl`. `io` outlives
// the probe.
std::unique_ptr<Probe> NewProbe(IoThread* io, const agent::v1::HealthCheck& check);

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_NEW_PROBE_H_
