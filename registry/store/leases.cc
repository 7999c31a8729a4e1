#include "registry/store/leases.h"

#include <string_view>
#include <utility>

#include "registry/model/ids.h"
#include "registry/store/leases_core.h"

namespace failback {

Leases::Core::Lease* Leases::Core::Find(const std::string& session_id) {
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
  if (std::exchange(lease->held, true)) return;
  guard.Hold(Now());
}

void Leases::Core::Unhold(Lease* lease) {
  if (std::exchange(lease->held, false)) guard.Unhold();
}

EvictionGuard::Period Leases::Core::TakeEndedHold() { return guard.TakeEnded(Now()); }

void Leases::Core::Grant(const std::string& session_id, int64_t ttl, uint64_t process) {
  EvictionGuard::Period ended_hold;
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
    guard.Granted(ttl);
    if (lease->held) guard.CountRenewal();
    Extend(lease, now);
    StartHeartbeat();
    ended_hold = TakeEndedHold();
  }
  ended_hold.LogEnd();
}

Leases::Renewal Leases::Core::Renew(const std::string& session_id, uint64_t process) {
  Renewal renewal;
  EvictionGuard::Period ended_hold;
  {
    MutexLock lock(&mu);
    Lease* const lease = Find(session_id);
    if (lease == nullptr || lease->ending) return {};
    const int64_t now = Now();
    lease->interval = now - lease->renewed;
    lease->renewed = now;
    ++stats.renewals;
    if (lease->held) guard.CountRenewal();
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
  EvictionGuard::Period ended_hold;
  {
    MutexLock lock(&mu);
    const auto it = leases.find(session_id);
    if (it == leases.end()) return;
    dropped = std::move(it->second);
    leases.erase(it);
    Unhold(dropped.get());
    if (dropped->ending) guard.Ended(dropped->owner, Now());
    dropped->timeout.Cancel();
    if (leases.empty()) {
      pause_watch.Clear();
      guard.Clear();
    }
    ended_hold = TakeEndedHold();
  }
  ended_hold.LogEnd();
}

int64_t Leases::Core::SetGuard(bool on, std::string_view by) {
  if (!on) return Release({LeaseEnd::Cause::kGuardOff, Blob(by)});
  MutexLock lock(&mu);
  guard.Switch(true);
  return 0;
}

int64_t Leases::Core::Release(const LeaseEnd& end) {
  std::vector<std::string> released;
  EvictionGuard::Period ended_hold;
  {
    MutexLock lock(&mu);
    if (end.cause == LeaseEnd::Cause::kGuardOff) guard.Switch(false);
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
  if (guard.held() == 0) return held;
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
  if (session_ids.empty() || !BeginReport()) return;
  on_due(std::move(session_ids));
  EndReport();
}

void Leases::Core::ReportHold() {
  if (on_hold == nullptr || !BeginReport()) return;
  on_hold();
  EndReport();
}

bool Leases::Core::BeginReport() {
  MutexLock lock(&mu);
  if (stopped) return false;
  ++reporting;
  return true;
}

void Leases::Core::EndReport() {
  MutexLock lock(&mu);
  if (--reporting == 0) quiet.SignalAll();
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
  stats.held = core_->guard.held();
  stats.holds = core_->guard.holds();
  stats.guard = core_->guard.on();
  return stats;
}

std::optional<Leases::Status> Leases::Look(const std::string& session_id) const {
  MutexLock lock(&core_->mu);
  const Core::Lease* const lease = core_->Find(session_id);
  if (lease == nullptr) return std::nullopt;
  const int64_t now = core_->Now();
  Status status;
  status.remaining = absl::Nanoseconds(lease->deadline - now);
  status.held = lease->held;
  if (lease->held)
    status.longest_hold =
        absl::Nanoseconds(core_->guard.HoldEnds(lease->renewed, lease->ttl) - now);
  return status;
}

}  // namespace failback
