// The upstream's session as the prober sees it: a pure state machine.
//
// One call is in flight at a time: OpenSession until there is a session, then KeepAlive every TTL/3
// (Redisson's watchdog rule). When a call fails the upstream counts as down, and OpenSession is
// repeated with the reconnect backoff, about once a second, until it succeeds: it resumes the
// session if that still lives and replaces it if not, in one round trip. A session that the
// upstream does not know is opened again, with the same incarnation.
//
// The owner's own calls may fail too, and an UNAVAILABLE of one call is not yet an outage: it makes
// the upstream suspect, and a probe decides. Only a failed probe counts as a loss, so that one
// method that keeps failing behind a healthy connection does not set off a resync each time.
//
// The session's lease counts from when its last successful renewal was sent: once it has run out,
// or the upstream has said that it does not know the session, what was acknowledged in it may be
// gone, and lapse() says since when until the session is renewed or another is opened.
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
// It holds no lock, arms no timer and makes no call. Each step takes the time and what has
// happened, and says what is to be done: the call to be made, and that the owner is to read
// state(). Tick() is due at due_nanos(), which every step may change.
//
// Example:
//
//   UpstreamMachine::Effects effects = machine.Tick(now);
//   if (effects.call.kind == UpstreamMachine::Call::Kind::kOpen) {
//     upstream->OpenSession(machine.OpenRequest(), [&](auto response) {
//       effects = machine.Opened(Now(), std::move(response));
//     });
//   }
//   timer->NewTimeout(tick, absl::Nanoseconds(machine.due_nanos() - now.nanos));
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_FAILBACK_UPSTREAM_MACHINE_H_
#define FAILBACK_REGISTRY_FAILBACK_UPSTREAM_MACHINE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/model/messages.h"
#include "retry/backoff.h"

namespace failback {

class UpstreamMachine {
 public:
  struct Options {
    std::string incarnation;
    std::string client_name;
    absl::Duration ttl;
    BackoffOptions reconnect;
    // This process, to the upstream; not 0.
    uint64_t process = 1;
    Random random;
    // Makes another incarnation.
    std::function<std::string()> new_incarnation;
  };

  // The moment of a step.
  struct Now {
    int64_t nanos = 0;
    absl::Time wall;
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
    // Another process was seen in the session not long ago. And how often this one has taken a new
    // incarnation for that, and when it did last.
    bool contested = false;
    int64_t twins = 0;
    absl::Time twin_time = absl::InfinitePast();

    // The upstream answers, and lets this agent open or renew no session.
    bool refused() const;
  };

  struct Lapse {
    // Unset while the session is renewed, before the first and after the last.
    std::optional<absl::Time> since;
    // As it was not renewed for its TTL; else the upstream said that it does not know it.
    bool overdue = false;
  };

  // To be made; its answer comes back with Opened(), Renewed() or Closed().
  struct Call {
    enum class Kind { kNone, kOpen, kRenew, kClose };
    Kind kind = Kind::kNone;  // kOpen: with OpenRequest()
    // Of the session to be renewed or closed.
    std::string session_id;
  };

  // What a step asks for.
  struct Effects {
    Call call;
    bool changed = false;  // the state may have
  };

  static constexpr int64_t kNever = INT64_MAX;

  // Nothing is due before Start().
  UpstreamMachine(Options options, Now now);

  Effects Start(Now now);
  // Time has passed.
  Effects Tick(Now now);
  // When the next Tick() is due.
  int64_t due_nanos() const;

  Effects Opened(Now now, absl::StatusOr<OpenSessionResponse> response);
  Effects Renewed(Now now, const std::string& session_id,
                  absl::StatusOr<KeepAliveResponse> response);
  Effects Closed(Now now, const absl::Status& status);

  // A call of the owner's could not reach the upstream. Probes, at most once in
  // `reconnect.initial`.
  Effects ReportFailure(Now now, const absl::Status& status);
  // The upstream has answered that it does not know `session_id`. Opens a new session, if that is
  // the current one.
  Effects ReportLost(Now now, const std::string& session_id);
  // Ends the session at the upstream, trying until it succeeds; the state becomes kClosed.
  Effects Close(Now now);

  // Whether `report` goes with the renewal that is about to be sent: the upstream has another one.
  bool TakesReport(const registry::v1::AgentReport& report);

  // As the last step has left it.
  const State& state() const { return state_; }
  // Whether the session is renewed; that ends with time, without a step.
  Lapse lapse(Now now) const;
  OpenSessionRequest OpenRequest() const;
  uint64_t process() const { return options_.process; }
  // When the last of its calls that succeeded was made: the session was alive then.
  int64_t confirmed_nanos() const { return confirmed_nanos_; }

 private:
  // The next call, if none is in flight.
  void NextCall(Now now, Effects* effects);
  // OK, or why the registry that answered is not taken for the one that was there before.
  absl::Status CheckStore(const OpenSessionResponse& opened);
  // A renewal shows that `process` has opened the session last.
  void LookForTwin(Now now, uint64_t process);
  // This process has another name from now on, and no session.
  void TakeIncarnation(Now now);
  // The upstream does not know the session: opens a new one; not at once when that was opened just
  // now, so that two registries behind one address do not make it spin.
  void Lost(Now now);
  absl::Duration Ttl() const;
  // When the lease runs out unless it is renewed.
  int64_t LeaseEnd() const;
  // The call in flight has ended, and the next is due after `delay`.
  void Schedule(Now now, absl::Duration delay);
  void Succeeded(Now now);
  void Failed(Now now, const absl::Status& status);
  void SetPhase(Now now, Phase phase);
  // From when the last call was sent.
  absl::Duration UntilRenewal(Now now) const;
  // How long to wait with a new session after the last was lost.
  absl::Duration ReopenDelay() const;

  const Options options_;
  State state_;
  bool busy_ = false;  // a call is in flight
  // When the next call is due, and when the lease runs out.
  int64_t next_nanos_ = kNever;
  int64_t lapse_nanos_ = kNever;
  int failures_ = 0;  // in a row
  int refusals_ = 0;  // with a delay of the server's, in a row
  int losses_ = 0;    // of young sessions, in a row
  int64_t opened_nanos_ = 0;
  // When the last call was made, and the last that succeeded; when the session was lost.
  int64_t probed_nanos_ = 0;
  int64_t confirmed_nanos_ = 0;
  int64_t lost_nanos_ = 0;
  // Store ids that were there before the present one.
  std::set<std::string> former_stores_;
  int refused_stores_ = 0;  // in a row
  // The session is to be opened once more, as another process has.
  bool reopen_ = false;
  int undisturbed_ = 0;  // renewals since then
  // The report that the registry has; empty: none.
  std::string reported_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_UPSTREAM_MACHINE_H_
