// One way to ask a service how it is. A HealthChecker asks again and again.
//
// Implementations: TCP and HTTP on sockets (socket_probes.h), grpc.health.v1 (grpc_probe.h),
// a program (command_probe.h). None blocks, and none has a timer: the checker's wheel ends a try
// that takes too long.
//
// Thread safety: Run and Cancel from any thread, not at the same time as the destructor.

#ifndef FAILBACK_AGENT_HEALTH_PROBE_H_
#define FAILBACK_AGENT_HEALTH_PROBE_H_

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace failback {

class Probe {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // Cancels a try under way.
  virtual ~Probe() = default;

  // Asks once; one try at a time. OK means well; otherwise the message says why not, for a person.
  // `done` runs once, on any thread, possibly before this returns and possibly after the probe is
  // gone.
  virtual void Run(Done done) = 0;

  // Ends the try under way, if any: its `done` runs soon, and what it says does not matter.
  virtual void Cancel() = 0;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_PROBE_H_
