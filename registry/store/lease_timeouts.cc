// What the timeouts of Leases do: leases run out, alone or together; what is held is looked at
// again; a heartbeat finds out whether this process was paused.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/store/leases_core.h"

namespace failback {
namespace {

// A client is late when it has been silent for this many of its usual intervals.
constexpr double kLateIntervals = 1.5;

void LogPause() {
  Log(LogLevel::kWarning, "this process was paused: every session has its full time again");
}

}  // namespace

void Leases::Core::OnTimeout(const std::string& session_id) {
  bool paused = false;
  bool first_hold = false;
  EvictionVote::Count count;
  EvictionGuard::Period ended_hold;
  {
    MutexLock lock(&mu);
    Lease* const lease = Find(session_id);
    if (stopped || lease == nullptr) return;
    lease->armed = false;
    const int64_t now = Now();
    if (lease->deadline > now) {
      // Renewed while this task was on its way.
      Arm(lease, lease->deadline - now);
      return;
    }
    paused = NoticePause(lease->deadline, now);
    if (!paused && !MayEnd(*lease, now)) {
      first_hold = guard.held() == 0;
      if (first_hold) count = Vote(lease->ttl, now).all();
      Hold(lease);
      ScheduleRecheck();
      if (!first_hold) return;
    } else if (!paused && gathering) {
      gathered.push_back(session_id);
      return;
    } else if (!paused) {
      gathering = Gather();
    }
    ended_hold = TakeEndedHold();
  }
  if (paused) {
    LogPause();
    ended_hold.LogEnd();
  } else if (first_hold) {
    Log(LogLevel::kWarning,
        "too many sessions would expire at once: their instances are kept until they renew",
        {{"not_renewed", absl::StrCat(count.failing)}, {"sessions", absl::StrCat(count.sessions)}});
    ReportHold();
  } else {
    ReportDue({session_id});
  }
}

bool Leases::Core::Gather() {
  return options.timer
      ->NewTimeout([core = shared_from_this()] { core->OnGathered(); }, absl::ZeroDuration())
      .ok();
}

void Leases::Core::OnGathered() {
  std::vector<std::string> due;
  {
    MutexLock lock(&mu);
    due.swap(gathered);
    gathering = !stopped && !due.empty() && Gather();
  }
  ReportDue(std::move(due));
}

bool Leases::Core::NoticePause(int64_t due, int64_t now) {
  if (!pause_watch.Notice(due, now)) return false;
  ++stats.pauses;
  for (auto& [id, lease] : leases) {
    if (!lease->ending) Extend(lease.get(), now);
  }
  return true;
}

// Whether a lease that has run out may end its session.
bool Leases::Core::MayEnd(const Lease& lease, int64_t now) {
  return !guard.on() || lease.end.decided() || HeldForLong(lease, now) ||
         Vote(lease.ttl, now).MayEnd(lease.owner);
}

bool Leases::Core::HeldForLong(const Lease& lease, int64_t now) const {
  return now >= guard.HoldEnds(lease.renewed, lease.ttl);
}

const EvictionVote& Leases::Core::Vote(int64_t ttl, int64_t now) {
  return guard.Vote(ttl, now, [&](EvictionVote::Owners* owners) {
    mu.AssertHeld();
    for (const auto& [id, lease] : leases) {
      const auto usual = static_cast<double>(std::max(lease->interval, lease->ttl / 3));
      const bool silent = static_cast<double>(now - lease->renewed) > kLateIntervals * usual;
      (*owners)[lease->owner].Add(silent || lease->ending || lease->deadline <= now);
    }
  });
}

void Leases::Core::ScheduleRecheck() {
  if (recheck_armed || stopped) return;
  const int64_t delay =
      std::max<int64_t>(pause_watch.smallest_ttl() / 10, EvictionGuard::kCountEveryNanos);
  recheck_armed =
      options.timer
          ->NewTimeout([core = shared_from_this()] { core->OnRecheck(); }, absl::Nanoseconds(delay))
          .ok();
}

void Leases::Core::OnRecheck() {
  std::vector<std::string> released;
  int64_t held_for_long = 0;
  EvictionGuard::Period ended_hold;
  {
    MutexLock lock(&mu);
    recheck_armed = false;
    if (stopped || guard.held() == 0) return;
    guard.Recount();
    const int64_t now = Now();
    for (const auto& [id, lease] : leases) {
      if (!lease->held || !MayEnd(*lease, now)) continue;
      const bool for_long = HeldForLong(*lease, now);
      if (for_long) ++held_for_long;
      lease->end.cause = for_long ? LeaseEnd::Cause::kLongestHold : LeaseEnd::Cause::kHoldOver;
      released.push_back(lease->session_id);
      Unhold(lease.get());
    }
    if (guard.held() > 0) ScheduleRecheck();
    ended_hold = TakeEndedHold();
  }
  if (released.empty()) return;
  Log(LogLevel::kWarning, "held sessions are let go",
      {{"sessions", absl::StrCat(released.size())},
       {"held_for_the_longest_time", absl::StrCat(held_for_long)}});
  ended_hold.LogEnd();
  ReportDue(std::move(released));
}

void Leases::Core::StartHeartbeat() {
  if (pause_watch.beating() || stopped || leases.empty()) return;
  const absl::Duration period = absl::Nanoseconds(pause_watch.Begin(Now()));
  const auto timeout =
      options.timer->NewTimeout([core = shared_from_this()] { core->OnHeartbeat(); }, period);
  if (!timeout.ok()) pause_watch.End();
}

void Leases::Core::OnHeartbeat() {
  bool paused = false;
  EvictionGuard::Period ended_hold;
  {
    MutexLock lock(&mu);
    if (stopped) return;
    const int64_t now = Now();
    paused = !leases.empty() && NoticePause(now, now);
    pause_watch.End();
    StartHeartbeat();
    ended_hold = TakeEndedHold();
  }
  if (paused) LogPause();
  ended_hold.LogEnd();
}

}  // namespace failback
