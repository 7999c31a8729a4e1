// A health check that is a program: well when it exits with 0.

#ifndef FAILBACK_AGENT_HEALTH_COMMAND_PROBE_H_
#define FAILBACK_AGENT_HEALTH_COMMAND_PROBE_H_

#include <memory>
#include <string>
#include <vector>

#include "agent/health/probe.h"

namespace failback {

class IoThread;

// `argv` is not empty; its first is found through PATH. The program runs in a process group of its
// own, with no input, output or inherited descriptors; the group is killed when the try is ended,
// and by the program's end. `io` outlives the probe.
std::unique_ptr<Probe> NewCommandProbe(IoThread* io, const std::vector<std::string>& argv);

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_COMMAND_PROBE_H_
