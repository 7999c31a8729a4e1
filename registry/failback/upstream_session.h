// One session at an upstream registry, kept alive; and the one prober of its connection.
//
// A state machine with one call in flight: OpenSession until there is a session, then KeepAlive
// every TTL/3 (Redisson's watchdog rule). When a call fails the upstream counts as down, and
// OpenSession is repeated with the reconnect backoff, about once a second, until it succeeds: it
// resumes the session if that still lives and replaces it if not, in one round trip. A session that
// the upstream does not know is opened again, with the same incarnation.
//
// The owner's own calls may fail too, and an UNAVAILABLE of one call is not yet an outage: it makes
// the upstream suspect, and a probe decides. Only a failed probe counts as a loss, so that one
// method that keeps failing behind a healthy connection does not set off a resync each time.
//
// The session's lease counts from when its last successful renewal was sent: once it has run out,
// or the upstream has said that it does not know the session, what was acknowledged in it may be
// gone, and the state says since when (`lapsed_since`) until the session is renewed or another is
// opened.
//
// Two registries behind one address answer with two store ids in turn. An answer with a store id
// that was there before the present one is refused with an error that says so, unless it keeps
// coming (a store that was put back).
//
// A process says which one it is, and a renewal says which one has opened the session last
// (KeepAliveResponse.process). Another one: a second process runs under this incarnation, from a
// copy of its state directory, or configured so. Once it may be an OpenSession of a dead
// predecessor that was long on its way, so the session is opened again, which notifies the other
// one too. The second time this process leaves the incarnation to that one, and takes a new one. So
// of two, the one that was there before leaves: its rank is the later one then, and it keeps its
// keys.
//
// An incarnation that the upstream keeps for another caller is lost to this one, as that caller may
// hold it for as long as it likes: a new random one is taken, and tried with the next attempt.
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
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/failback/call_gate.h"
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

  enum class Phase {
    kConnecting,  // no answer yet to the first call, or to the one that replaces a lost session
    kUp,
    kSuspect,  // a call has failed, and a probe is to show it
    kDown,     // the last probe failed; probing on
    kClosing,  // Close() was called
    kClosed,   // the upstream has ended the session
  };

  struct State {
    Phase phase = Phase::kConnecting;
    // Of an outage, whatever the phases that it goes through: its begin.
    absl::Time since = absl::InfinitePast();
    uint64_t session_serial = 0;
    uint64_t connection_serial = 0;
    // The one of the options, or that which took its place.
    std::string incarnation;
    // Empty when there is none.
    std::string session_id;
    OpenSessionResponse info;
    // How the last call of its own that failed ended; OK when none has since the last success.
    absl::Status last_error;
    // Unset while the session is renewed, before the first and after the last.
    std::optional<absl::Time> lapsed_since;
    // As it was not renewed for its TTL; else the upstream said that it does not know it.
    bool overdue = false;
    // Another process was seen in the session not long ago. And how often this one has taken a new
    // incarnation for that, and when it did last.
    bool contested = false;
    int64_t twins = 0;
    absl::Time twin_time = absl::InfinitePast();

    // The upstream answers, and lets this agent open or renew no session.
    bool refused() const;
  };

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

  // Makes the next call, if none is in flight.
  void Step();
  void Renew(const std::shared_ptr<Registry>& upstream, const std::string& session_id);
  // OK, or why the registry that answered is not taken for the one that was there before.
  absl::Status CheckStore(const OpenSessionResponse& opened) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnOpened(absl::StatusOr<OpenSessionResponse> response);
  void OnRenewed(const std::string& session_id, absl::StatusOr<KeepAliveResponse> response);
  void OnClosed(const absl::Status& status);
  // A renewal shows that `process` has opened the session last.
  void LookForTwin(uint64_t process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // This process has another name from now on, and no session.
  void TakeIncarnation() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The upstream does not know the session: opens a new one; not at once when that was opened just
  // now, so that two registries behind one address do not make it spin.
  void Lost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration Ttl() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When the lease runs out unless it is renewed.
  int64_t LeaseEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ArmLapse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The call in flight has ended, and the next is due after `delay`.
  void Schedule(absl::Duration delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Succeeded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Failed(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetPhase(Phase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // From when the last call was sent.
  absl::Duration UntilRenewal() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How long to wait with a new session after the last was lost.
  absl::Duration ReopenDelay() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const std::function<void()> on_change_;
  const uint64_t process_;

  CallGate gate_;
  mutable Mutex mu_;
  std::shared_ptr<Registry> upstream_ ABSL_GUARDED_BY(mu_);
  State state_ ABSL_GUARDED_BY(mu_);
  Timeout next_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int failures_ ABSL_GUARDED_BY(mu_) = 0;  // in a row
  int refusals_ ABSL_GUARDED_BY(mu_) = 0;  // with a delay of the server's, in a row
  int losses_ ABSL_GUARDED_BY(mu_) = 0;    // of young sessions, in a row
  int64_t opened_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  // When the last call was made, and the last that succeeded; when the session was lost.
  int64_t probed_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t confirmed_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t lost_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  Timeout lapse_ ABSL_GUARDED_BY(mu_);
  // Store ids that were there before the present one.
  std::set<std::string> former_stores_ ABSL_GUARDED_BY(mu_);
  int refused_stores_ ABSL_GUARDED_BY(mu_) = 0;  // in a row
  // The session is to be opened once more, as another process has.
  bool reopen_ ABSL_GUARDED_BY(mu_) = false;
  int undisturbed_ ABSL_GUARDED_BY(mu_) = 0;  // renewals since then
  // The report that the registry has; empty: none.
  std::string reported_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_UPSTREAM_SESSION_H_
