// When sessions end: one timeout per session, put off by each renewal.
//
// A lease runs out one TTL after its last renewal. The owner of the sessions is notified and ends
// them; until that is done a renewal may still come in time. Two things keep leases from running
// out for reasons that are not the clients':
//
// * Own pause. When this process was stopped or starved (a timeout or the heartbeat between them
//   comes late by half a TTL or more; registry/base/pause_watch.h), no client could renew: every
//   lease gets a full TTL again.
// * Eviction guard. From `guard_min_sessions` up, when more than `guard_share` of the sessions
//   have run out, miss their renewals, or have been ended within one TTL, the fault is more likely
//   the network's: leases that have run out are held, until they are renewed, the share is smaller,
//   or they have been held for `guard_longest_hold`. No owner of sessions can make it hold those of
//   others (eviction_vote.h).
//
// The first lease that runs out is reported at once; those that follow within a tick of the timer
// are reported together, so that sessions which end together can end in one commit.
//
// Example:
//
//   Leases leases(options, [&](std::vector<std::string> ids) { EndLater(ids); });
//   leases.Grant(session_id, ttl);
//   leases.Renew(session_id);                  // every ttl / 3; false: it is gone
//   if (leases.BeginEnd(session_id)) { ... leases.Drop(session_id); }
//
// Thread safety: all methods may be called from any thread; `on_due` is called without locks, on
// the timer's threads, and may call back.

#ifndef FAILBACK_REGISTRY_STORE_LEASES_H_
#define FAILBACK_REGISTRY_STORE_LEASES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "registry/store/lease_end.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class Leases {
 public:
  struct Options {
    HashedWheelTimer* timer = nullptr;  // outlives the leases
    bool guard = true;
    int64_t guard_min_sessions = 20;
    double guard_share = 0.15;
    // Zero: ten times the lease's TTL, at most five minutes.
    absl::Duration guard_longest_hold;
  };

  struct Statistics {
    int64_t leases = 0;
    int64_t held = 0;    // run out, and held by the guard
    int64_t holds = 0;   // how often a lease was held, in all
    int64_t pauses = 0;  // own pauses noticed
    int64_t renewals = 0;
    bool guard = false;  // is on
  };

  // Gets the leases that have run out, perhaps more than once.
  using OnDue = std::function<void(std::vector<std::string> session_ids)>;
  // Runs when the guard begins to hold leases, while it held none; called as OnDue.
  using OnHold = std::function<void()>;

  Leases(Options options, OnDue on_due, OnHold on_hold = nullptr);
  ~Leases();  // as Stop
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // A full TTL from now, for a new session or for one that has a lease already. `process`: who has
  // opened it (OpenSessionRequest.process); 0: not known.
  void Grant(const std::string& session_id, absl::Duration ttl, uint64_t process = 0);

  struct Renewal {
    // From now; zero for a session without a lease, or whose end has begun.
    absl::Duration ttl;
    // Who has opened it last; 0: not known.
    uint64_t process = 0;
    // The first renewal by another one since it was opened.
    bool contested = false;
  };
  // `process` renews; where it is not known who opened the session it is taken for that one.
  Renewal Renew(const std::string& session_id, uint64_t process = 0);

  // Why the session is to be ended now: its lease has run out and nothing speaks against it.
  // From then on it cannot be renewed; Drop or Retry follows. Nullopt: it is not to be ended.
  std::optional<LeaseEnd> BeginEnd(const std::string& session_id);

  // The end could not be recorded: the session lives on, and is due again after `delay`.
  void Retry(const std::string& session_id, absl::Duration delay);

  // Forgets a session that has ended. Nothing if it is not known.
  void Drop(const std::string& session_id);

  // Forgets all; from then on nothing is granted and no callback runs. Returns when no on_due and
  // no on_hold is running.
  void Stop();

  // Switches the eviction guard. Off: what is held is due at once; how many that are is returned.
  // `by`: the operator.
  int64_t SetGuard(bool on, std::string_view by = "");

  // What is held now is due at once, and is not held again until it has been renewed; how many that
  // are. The guard goes on.
  int64_t Release(std::string_view by = "");

  // The sessions whose leases are held.
  std::vector<std::string> Held() const;

  Statistics Stats() const;

  // A session's lease now.
  struct Status {
    absl::Duration remaining;  // negative once it has run out
    bool held = false;
    absl::Duration longest_hold;  // how much longer it is held at most, if it is
  };
  std::optional<Status> Look(const std::string& session_id) const;

 private:
  struct Core;
  const std::shared_ptr<Core> core_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_LEASES_H_
