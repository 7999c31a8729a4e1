// What Leases consists of. Internal to it: leases.cc has what its callers do, lease_timeouts.cc
// what its timeouts do.

#ifndef FAILBACK_REGISTRY_STORE_LEASES_CORE_H_
#define FAILBACK_REGISTRY_STORE_LEASES_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "registry/base/pause_watch.h"
#include "registry/store/eviction_guard.h"
#include "registry/store/eviction_vote.h"
#include "registry/store/lease_end.h"
#include "registry/store/leases.h"
#include "retry/clock.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {

struct Leases::Core : std::enable_shared_from_this<Leases::Core> {
  struct Lease {
    std::string session_id;
    std::string owner;
    int64_t ttl = 0;  // nanoseconds, as all times here
    int64_t deadline = 0;
    int64_t renewed = 0;   // when
    uint64_t process = 0;  // that has opened it last; 0: not known
    int64_t interval = 0;  // between the last two renewals; 0: not known yet
    Timeout timeout;
    bool armed = false;  // the timeout's task is to run, or runs now
    bool held = false;
    LeaseEnd end;  // why, if it has run out
    bool ending = false;
    bool contested = false;  // another process than that has renewed it
  };

  Core(Options options_in, OnDue on_due_in, OnHold on_hold_in)
      : options(options_in),
        on_due(std::move(on_due_in)),
        on_hold(std::move(on_hold_in)),
        guard(options.guard, {options.guard_min_sessions, options.guard_share},
              absl::ToInt64Nanoseconds(options.guard_longest_hold)) {}

  int64_t Now() const { return options.timer->clock()->NowNanos(); }

  void Grant(const std::string& session_id, int64_t ttl, uint64_t process);
  Renewal Renew(const std::string& session_id, uint64_t process);
  std::optional<LeaseEnd> BeginEnd(const std::string& session_id);
  void Retry(const std::string& session_id, int64_t delay);
  void Drop(const std::string& session_id);
  int64_t SetGuard(bool on, std::string_view by);
  // Ends what is held, and why: kGuardOff also puts the guard off.
  int64_t Release(const LeaseEnd& end);
  void Stop();

  // Timer tasks.
  void OnTimeout(const std::string& session_id);
  void OnGathered();
  void OnHeartbeat();
  void OnRecheck();

  void Arm(Lease* lease, int64_t delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Extend(Lease* lease, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void StartHeartbeat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // True, and every lease is a full one again, when this process was paused.
  bool NoticePause(int64_t due, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool MayEnd(const Lease& lease, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // What a lease with `ttl` is judged by.
  const EvictionVote& Vote(int64_t ttl, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool HeldForLong(const Lease& lease, int64_t now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Lets go of all that is held, and returns which ones they are.
  std::vector<std::string> LetGo(const LeaseEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Hold(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Unhold(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The period that has ended, once; to be logged without the lock.
  EvictionGuard::Period TakeEndedHold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ScheduleRecheck() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Until the next tick leases that run out are gathered. False: they cannot be.
  bool Gather() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  Lease* Find(const std::string& session_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  std::vector<std::string> Held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Calls on_due, on_hold, unless stopped. Without the lock.
  void ReportDue(std::vector<std::string> session_ids);
  void ReportHold();
  bool BeginReport();
  void EndReport();

  const Options options;
  const OnDue on_due;
  const OnHold on_hold;
  mutable Mutex mu;
  CondVar quiet;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  int reporting ABSL_GUARDED_BY(mu) = 0;  // calls of on_due and on_hold under way
  EvictionGuard guard ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<std::string_view, std::unique_ptr<Lease>> leases ABSL_GUARDED_BY(mu);
  PauseWatch pause_watch ABSL_GUARDED_BY(mu);
  bool recheck_armed ABSL_GUARDED_BY(mu) = false;
  bool gathering ABSL_GUARDED_BY(mu) = false;
  std::vector<std::string> gathered ABSL_GUARDED_BY(mu);
  Statistics stats ABSL_GUARDED_BY(mu);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_LEASES_CORE_H_
