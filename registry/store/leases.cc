#include "registry/store/leases.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/pause_watch.h"
#include "registry/model/ids.h"
#include "registry/store/eviction_vote.h"
#include "retry/clock.h"
#include "retry/mutex.h"

namespace failback {
namespace {

// While leases run out, how many miss their renewals is counted this often at most.
constexpr int64_t kCountEveryNanos = 50 * 1000 * 1000;
// A client is late when it has been silent for this many of its usual intervals.
constexpr double kLateIntervals = 1.5;
// Counts of one moment, for different TTLs. Further ones take that of the nearest.
constexpr size_t kMostCounts = 8;
// Unless the configuration says otherwise a lease is held for so many TTLs at most, and so long.
constexpr int64_t kHeldTtls = 10;
constexpr int64_t kHeldNanos = int64_t{300} * 1000 * 1000 * 1000;

void LogPause() {
  Log(LogLevel::kWarning, "this process was away: every session has its full time again");
}

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

// From the first lease that is held until none is.
struct HoldPeriod {
  int64_t held = 0;  // leases; one that is held twice counts twice
  int64_t renewed = 0;
  int64_t begin = 0;
  int64_t end = 0;

  void LogEnd() const {
    if (held == 0) return;
    Log(LogLevel::kInfo, "no session is held any more",
        {{"held", absl::StrCat(held)},
         {"renewed", absl::StrCat(renewed)},
         {"for", absl::FormatDuration(
                     absl::Trunc(absl::Nanoseconds(end - begin), absl::Milliseconds(1)))}});
  }
};

// A session that was ended by its lease.
struct Ended {
  int64_t at;
  std::string owner;
};

}  // namespace

struct Leases::Core : std::enable_shared_from_this<Leases::Core> {
  Core(Options options_in, OnDue on_due_in, OnHold on_hold_in)
      : options(options_in),
        on_due(std::move(on_due_in)),
        on_hold(std::move(on_hold_in)),
        guard(options.guard) {}

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
  // What a lease with the TTL `window` is judged by.
  const EvictionVote& Vote(int64_t window, int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // When a lease that is held is let go at the latest.
  int64_t HoldEnds(const Lease& lease) const;
  bool HeldForLong(const Lease& lease, int64_t now) const;
  // Lets go of all that is held, and returns which ones they are.
  std::vector<std::string> LetGo(const LeaseEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Hold(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Unhold(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void CountRenewal(const Lease& lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The period that has ended, once; to be logged without the lock.
  HoldPeriod TakeEndedHold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ScheduleRecheck() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Until the next tick leases that run out are gathered. False: they cannot be.
  bool Gather() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  Lease* Find(const std::string& session_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  std::vector<std::string> Held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Calls on_due, on_hold, unless stopped. Without the lock.
  void ReportDue(std::vector<std::string> session_ids);
  void TellHold();
  bool BeginTelling();
  void EndTelling();

  const Options options;
  const OnDue on_due;
  const OnHold on_hold;
  mutable Mutex mu;
  CondVar quiet;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  int reporting ABSL_GUARDED_BY(mu) = 0;  // calls of on_due and on_hold under way
  bool guard ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<std::string_view, std::unique_ptr<Lease>> leases ABSL_GUARDED_BY(mu);
  PauseWatch pause_watch ABSL_GUARDED_BY(mu);
  int64_t largest_ttl ABSL_GUARDED_BY(mu) = 0;
  bool recheck_armed ABSL_GUARDED_BY(mu) = false;
  bool gathering ABSL_GUARDED_BY(mu) = false;
  std::vector<std::string> gathered ABSL_GUARDED_BY(mu);
  std::deque<Ended> ended ABSL_GUARDED_BY(mu);  // in order
  HoldPeriod hold ABSL_GUARDED_BY(mu);
  int64_t counted_at ABSL_GUARDED_BY(mu) = INT64_MIN;
  std::map<int64_t, EvictionVote> votes ABSL_GUARDED_BY(mu);  // counted then, by TTL
  Statistics stats ABSL_GUARDED_BY(mu);
};

Lease* Leases::Core::Find(const std::string& session_id) {
  const auto it = leases.find(session_id);
  return it == leases.end() ? nullptr : it->second.get();
}

void Leases::Core::Arm(Lease* lease, int64_t delay) {
  if (stopped) return;
  auto timeout = options.timer->NewTimeout(
      [core = shared_from_this(), id = lease->session_id] { core->OnTimeout(id); },
      absl::Nanoseconds(delay));
  lease->armed = timeout.ok();
  if (timeout.ok()) lease->timeout = *std::move(timeout);
}

// A full TTL from `now`.
void Leases::Core::Extend(Lease* lease, int64_t now) {
  lease->deadline = now + lease->ttl;
  lease->end = {};
  Unhold(lease);
  if (lease->armed) {
    // If the task has started it waits for the lock, and will see the new deadline.
    lease->timeout.Reschedule(absl::Nanoseconds(lease->ttl));
  } else {
    Arm(lease, lease->ttl);
  }
}

void Leases::Core::Hold(Lease* lease) {
  if (lease->held) return;
  lease->held = true;
  if (hold.held++ == 0) hold.begin = Now();
  ++stats.held;
  ++stats.holds;
}

void Leases::Core::Unhold(Lease* lease) {
  if (!lease->held) return;
  lease->held = false;
  --stats.held;
}

void Leases::Core::CountRenewal(const Lease& lease) {
  if (lease.held) ++hold.renewed;
}

HoldPeriod Leases::Core::TakeEndedHold() {
  if (hold.held == 0 || stats.held > 0) return {};
  hold.end = Now();
  return std::exchange(hold, {});
}

void Leases::Core::Grant(const std::string& session_id, int64_t ttl, uint64_t process) {
  HoldPeriod ended_hold;
  {
    MutexLock lock(&mu);
    if (stopped) return;
    Lease* lease = Find(session_id);
    if (lease == nullptr) {
      auto made = std::make_unique<Lease>();
      lease = made.get();
      lease->session_id = session_id;
      lease->owner = SessionOwner(session_id);
      leases.emplace(lease->session_id, std::move(made));
    }
    const int64_t now = Now();
    lease->ttl = ttl;
    lease->process = process;
    lease->contested = false;
    lease->renewed = now;
    lease->ending = false;
    pause_watch.Granted(ttl);
    largest_ttl = std::max(largest_ttl, ttl);
    CountRenewal(*lease);
    Extend(lease, now);
    StartHeartbeat();
    ended_hold = TakeEndedHold();
  }
  ended_hold.LogEnd();
}

Leases::Renewal Leases::Core::Renew(const std::string& session_id, uint64_t process) {
  Renewal renewal;
  HoldPeriod ended_hold;
  {
    MutexLock lock(&mu);
    Lease* const lease = Find(session_id);
    if (lease == nullptr || lease->ending) return {};
    const int64_t now = Now();
    lease->interval = now - lease->renewed;
    lease->renewed = now;
    ++stats.renewals;
    CountRenewal(*lease);
    Extend(lease, now);
    if (lease->process == 0) lease->process = process;
    const bool other = process != 0 && process != lease->process;
    const bool contested = other && !std::exchange(lease->contested, true);
    renewal = {absl::Nanoseconds(lease->ttl), lease->process, contested};
    ended_hold = TakeEndedHold();
  }
  ended_hold.LogEnd();
  return renewal;
}

std::optional<LeaseEnd> Leases::Core::BeginEnd(const std::string& session_id) {
  MutexLock lock(&mu);
  Lease* const lease = Find(session_id);
  const int64_t now = Now();
  if (lease == nullptr || lease->ending || lease->held || lease->deadline > now) {
    return std::nullopt;
  }
  lease->ending = true;
  return lease->end;
}

void Leases::Core::Retry(const std::string& session_id, int64_t delay) {
  MutexLock lock(&mu);
  Lease* const lease = Find(session_id);
  if (lease == nullptr || !lease->ending) return;
  lease->ending = false;
  lease->deadline = Now() + delay;
  if (!lease->armed) Arm(lease, delay);
}

void Leases::Core::Drop(const std::string& session_id) {
  std::unique_ptr<Lease> dropped;
  HoldPeriod ended_hold;
  {
    MutexLock lock(&mu);
    const auto it = leases.find(session_id);
    if (it == leases.end()) return;
    dropped = std::move(it->second);
    leases.erase(it);
    Unhold(dropped.get());
    if (dropped->ending) ended.push_back({Now(), dropped->owner});
    dropped->timeout.Cancel();
    if (leases.empty()) {
      pause_watch.Clear();
      largest_ttl = 0;
    }
    ended_hold = TakeEndedHold();
  }
  ended_hold.LogEnd();
}

int64_t Leases::Core::SetGuard(bool on, std::string_view by) {
  if (!on) return Release({LeaseEnd::Cause::kGuardOff, Blob(by)});
  MutexLock lock(&mu);
  guard = true;
  return 0;
}

int64_t Leases::Core::Release(const LeaseEnd& end) {
  std::vector<std::string> released;
  HoldPeriod ended_hold;
  {
    MutexLock lock(&mu);
    if (end.cause == LeaseEnd::Cause::kGuardOff) guard = false;
    released = LetGo(end);
    ended_hold = TakeEndedHold();
  }
  ended_hold.LogEnd();
  const auto count = static_cast<int64_t>(released.size());
  ReportDue(std::move(released));
  return count;
}

std::vector<std::string> Leases::Core::LetGo(const LeaseEnd& end) {
  std::vector<std::string> released = Held();
  for (const std::string& id : released) {
    Lease* const lease = Find(id);
    Unhold(lease);
    lease->end = end;
  }
  return released;
}

std::vector<std::string> Leases::Core::Held() const {
  std::vector<std::string> held;
  if (stats.held == 0) return held;
  for (const auto& [id, lease] : leases) {
    if (lease->held) held.push_back(lease->session_id);
  }
  return held;
}

void Leases::Core::Stop() {
  absl::flat_hash_map<std::string_view, std::unique_ptr<Lease>> dropped;
  MutexLock lock(&mu);
  stopped = true;
  dropped.swap(leases);
  for (auto& [id, lease] : dropped) lease->timeout.Cancel();
  while (reporting > 0) quiet.Wait(&mu);
}

void Leases::Core::ReportDue(std::vector<std::string> session_ids) {
  if (session_ids.empty() || !BeginTelling()) return;
  on_due(std::move(session_ids));
  EndTelling();
}

void Leases::Core::TellHold() {
  if (on_hold == nullptr || !BeginTelling()) return;
  on_hold();
  EndTelling();
}

bool Leases::Core::BeginTelling() {
  MutexLock lock(&mu);
  if (stopped) return false;
  ++reporting;
  return true;
}

void Leases::Core::EndTelling() {
  MutexLock lock(&mu);
  if (--reporting == 0) quiet.SignalAll();
}

void Leases::Core::OnTimeout(const std::string& session_id) {
  bool was_away = false;
  bool first_hold = false;
  EvictionVote::Count count;
  HoldPeriod ended_hold;
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
    was_away = NoticePause(lease->deadline, now);
    if (!was_away && !MayEnd(*lease, now)) {
      first_hold = stats.held == 0;
      if (first_hold) count = Vote(lease->ttl, now).all();
      Hold(lease);
      ScheduleRecheck();
      if (!first_hold) return;
    } else if (!was_away && gathering) {
      gathered.push_back(session_id);
      return;
    } else if (!was_away) {
      gathering = Gather();
    }
    ended_hold = TakeEndedHold();
  }
  if (was_away) {
    LogPause();
    ended_hold.LogEnd();
  } else if (first_hold) {
    Log(LogLevel::kWarning,
        "too many sessions would expire at once: their instances are kept until they renew",
        {{"not_renewed", absl::StrCat(count.failing)}, {"sessions", absl::StrCat(count.sessions)}});
    TellHold();
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
  return !guard || lease.end.decided() || HeldForLong(lease, now) ||
         Vote(lease.ttl, now).MayEnd(lease.owner);
}

int64_t Leases::Core::HoldEnds(const Lease& lease) const {
  int64_t longest = absl::ToInt64Nanoseconds(options.guard_longest_hold);
  if (longest == 0) longest = std::min(kHeldTtls * lease.ttl, kHeldNanos);
  return lease.renewed + lease.ttl + longest;
}

bool Leases::Core::HeldForLong(const Lease& lease, int64_t now) const {
  return now >= HoldEnds(lease);
}

const EvictionVote& Leases::Core::Vote(int64_t window, int64_t now) {
  if (counted_at == INT64_MIN || now - counted_at >= kCountEveryNanos) {
    counted_at = now;
    votes.clear();
  }
  if (const auto it = votes.find(window); it != votes.end()) return it->second;
  if (votes.size() >= kMostCounts) {
    const auto nearest = votes.lower_bound(window);
    return nearest == votes.end() ? votes.rbegin()->second : nearest->second;
  }
  while (!ended.empty() && ended.front().at <= now - largest_ttl) ended.pop_front();
  EvictionVote::Owners owners;
  for (const auto& [id, lease] : leases) {
    const auto usual = static_cast<double>(std::max(lease->interval, lease->ttl / 3));
    const bool silent = static_cast<double>(now - lease->renewed) > kLateIntervals * usual;
    owners[lease->owner].Add(silent || lease->ending || lease->deadline <= now);
  }
  for (auto it = ended.rbegin(); it != ended.rend() && it->at > now - window; ++it) {
    owners[it->owner].Add(true);
  }
  const EvictionVote::Rule rule = {options.guard_min_sessions, options.guard_share};
  return votes.emplace(window, EvictionVote(rule, owners)).first->second;
}

void Leases::Core::ScheduleRecheck() {
  if (recheck_armed || stopped) return;
  const int64_t delay = std::max<int64_t>(pause_watch.smallest_ttl() / 10, kCountEveryNanos);
  recheck_armed =
      options.timer
          ->NewTimeout([core = shared_from_this()] { core->OnRecheck(); }, absl::Nanoseconds(delay))
          .ok();
}

void Leases::Core::OnRecheck() {
  std::vector<std::string> released;
  int64_t held_for_long = 0;
  HoldPeriod ended_hold;
  {
    MutexLock lock(&mu);
    recheck_armed = false;
    if (stopped || stats.held == 0) return;
    counted_at = INT64_MIN;
    const int64_t now = Now();
    for (const auto& [id, lease] : leases) {
      if (!lease->held || !MayEnd(*lease, now)) continue;
      const bool for_long = HeldForLong(*lease, now);
      if (for_long) ++held_for_long;
      lease->end.cause = for_long ? LeaseEnd::Cause::kLongestHold : LeaseEnd::Cause::kHoldOver;
      released.push_back(lease->session_id);
      Unhold(lease.get());
    }
    if (stats.held > 0) ScheduleRecheck();
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
  bool was_away = false;
  HoldPeriod ended_hold;
  {
    MutexLock lock(&mu);
    if (stopped) return;
    const int64_t now = Now();
    was_away = !leases.empty() && NoticePause(now, now);
    pause_watch.End();
    StartHeartbeat();
    ended_hold = TakeEndedHold();
  }
  if (was_away) LogPause();
  ended_hold.LogEnd();
}

Leases::Leases(Options options, OnDue on_due, OnHold on_hold)
    : core_(std::make_shared<Core>(options, std::move(on_due), std::move(on_hold))) {}

Leases::~Leases() { core_->Stop(); }

void Leases::Grant(const std::string& session_id, absl::Duration ttl, uint64_t process) {
  core_->Grant(session_id, absl::ToInt64Nanoseconds(ttl), process);
}

Leases::Renewal Leases::Renew(const std::string& session_id, uint64_t process) {
  return core_->Renew(session_id, process);
}

std::optional<LeaseEnd> Leases::BeginEnd(const std::string& session_id) {
  return core_->BeginEnd(session_id);
}

void Leases::Retry(const std::string& session_id, absl::Duration delay) {
  core_->Retry(session_id, absl::ToInt64Nanoseconds(delay));
}

void Leases::Drop(const std::string& session_id) { core_->Drop(session_id); }

void Leases::Stop() { core_->Stop(); }

int64_t Leases::SetGuard(bool on, std::string_view by) { return core_->SetGuard(on, by); }

int64_t Leases::Release(std::string_view by) {
  return core_->Release({LeaseEnd::Cause::kReleased, Blob(by)});
}

std::vector<std::string> Leases::Held() const {
  MutexLock lock(&core_->mu);
  return core_->Held();
}

Leases::Statistics Leases::Stats() const {
  MutexLock lock(&core_->mu);
  Statistics stats = core_->stats;
  stats.leases = static_cast<int64_t>(core_->leases.size());
  stats.guard = core_->guard;
  return stats;
}

std::optional<Leases::Standing> Leases::Look(const std::string& session_id) const {
  MutexLock lock(&core_->mu);
  const Lease* const lease = core_->Find(session_id);
  if (lease == nullptr) return std::nullopt;
  const int64_t now = core_->Now();
  Standing standing;
  standing.remaining = absl::Nanoseconds(lease->deadline - now);
  standing.held = lease->held;
  if (lease->held) standing.longest_hold = absl::Nanoseconds(core_->HoldEnds(*lease) - now);
  return standing;
}

}  // namespace failback
