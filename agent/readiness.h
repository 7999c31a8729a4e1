// Whether an agent has done what it is there for, for `failbackctl wait-ready` and for probes.
//
// Thread safety: Readiness is pure. ReadinessWatch: all methods from any thread.

#ifndef FAILBACK_AGENT_READINESS_H_
#define FAILBACK_AGENT_READINESS_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "failback/agent/v1/agent.pb.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "retry/periodic_task.h"

namespace failback {

// OK when every upstream has acknowledged all that should be registered there; otherwise
// UNAVAILABLE, and what is missing.
absl::Status Readiness(const agent::v1::GetStatusResponse& status);

// Names of grpc.health.v1 at an agent, beside the names of its services. Startup and liveness:
// serving. Readiness: below.
inline constexpr char kStartupHealth[] = "startup";
inline constexpr char kLivenessHealth[] = "liveness";
inline constexpr char kReadinessHealth[] = "readiness";

// Readiness as a probe should see it: true from when the agent was ready for the first time until
// it drains. An outage of the registry does not take it back, as otherwise one registry's failure
// would take every pod out of service. Looks until it is ready, and never again: a ready agent
// at rest does not wake up for this.
class ReadinessWatch {
 public:
  // `look` answers as Readiness(); `notify` is called with each change.
  ReadinessWatch(std::function<absl::Status()> look, std::function<void(bool ready)> notify)
      : look_(std::move(look)), notify_(std::move(notify)) {}
  ~ReadinessWatch() { Stop(); }

  // Reports that it is not ready, and begins to look. `timer` outlives the looking.
  void Start(HashedWheelTimer* timer);

  // Looks no more.
  void Stop();

  // Not ready from now on.
  void Draining();

  // What was reported last.
  bool ready() const;

 private:
  void Look();

  const std::function<absl::Status()> look_;
  const std::function<void(bool)> notify_;
  mutable Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<PeriodicTask> looking_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_AGENT_READINESS_H_
