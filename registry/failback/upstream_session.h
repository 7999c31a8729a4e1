// One session at an upstream registry, kept alive; and the one prober of its connection.
//
// What it does when is decided by UpstreamMachine, whose header says how. This is the shell: one
// lock around the machine's steps, one timeout, the calls to the upstream, and the news for the
// owner.
//
// The owner is notified that something changed and reads the state; two counters show what happened
// in between, so no news is lost when several come at once:
//   session_serial     grows with each new session and each new epoch: everything was lost
//   connection_serial  grows with each success after a failed probe: what was sent may be lost
//
// Thread safety: all methods from any thread. `on_change` runs without locks. state() may be called
// under the owner's lock; the other methods may call `on_change` before they return, so not.

#ifndef FAILBACK_REGISTRY_FAILBACK_UPSTREAM_SESSION_H_
#define FAILBACK_REGISTRY_FAILBACK_UPSTREAM_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/failback/call_gate.h"
#include "registry/failback/upstream_machine.h"
#include "registry/registry.h"
#include "retry/backoff.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {

class UpstreamSession : public std::enable_shared_from_this<UpstreamSession> {
 public:
  struct Options {
    std::string incarnation;
    std::string client_name;
    absl::Duration ttl;
    BackoffOptions reconnect;
    HashedWheelTimer* timer;
    Random random;
    // Optional. How the owner is, for the registry: goes with the first renewal of a session, with
    // the first after an outage, and when it has changed. Called without locks.
    std::function<registry::v1::AgentReport()> report = nullptr;
  };

  using Phase = UpstreamMachine::Phase;
  using State = UpstreamMachine::State;

  // Nothing is called before Start().
  static std::shared_ptr<UpstreamSession> Create(std::shared_ptr<Registry> upstream,
                                                 Options options, std::function<void()> on_change);

  void Start();

  // As it is at this moment. `on_change` follows when the lease runs out.
  State state() const;

  // A call of the owner's could not reach the upstream. Probes, at most once in
  // `reconnect.initial`.
  void ReportFailure(const absl::Status& status);

  // The upstream has answered that it does not know `session_id`. Opens a new session, if that is
  // the current one.
  void ReportLost(const std::string& session_id);

  // Ends the session at the upstream, trying until it succeeds; the state becomes kClosed.
  void Close();

  // Stops all timers; calls under way change nothing any more. Waits for other threads to leave.
  void Stop();

  // The registry that the session is at; null after ReleaseUpstream().
  std::shared_ptr<Registry> upstream() const;
  // After Stop(): lets go of the upstream, which destroys it if it has no other holder.
  void ReleaseUpstream();

 private:
  UpstreamSession(std::shared_ptr<Registry> upstream, Options options,
                  std::function<void()> on_change);

  // Steps the machine under the lock, and does what it asks for without.
  using Step = std::function<UpstreamMachine::Effects(UpstreamMachine*, UpstreamMachine::Now)>;
  void Do(const Step& step);
  void Make(UpstreamMachine::Call call, const std::shared_ptr<Registry>& upstream);
  void Renew(const std::string& session_id, const std::shared_ptr<Registry>& upstream);
  UpstreamMachine::Now Now() const;
  // Arms the timeout for the machine's next moment.
  void Arm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnDue();

  const Options options_;
  const std::function<void()> on_change_;

  CallGate gate_;
  mutable Mutex mu_;
  std::shared_ptr<Registry> upstream_ ABSL_GUARDED_BY(mu_);
  UpstreamMachine machine_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Timeout due_ ABSL_GUARDED_BY(mu_);
  int64_t armed_for_nanos_ ABSL_GUARDED_BY(mu_) = UpstreamMachine::kNever;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_UPSTREAM_SESSION_H_
