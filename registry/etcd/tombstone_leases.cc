#include "registry/etcd/tombstone_leases.h"

#include <utility>

#include "registry/base/steady_time.h"

namespace failback {
namespace etcd {

void TombstoneLeases::Take(absl::Duration retention, int64_t keys, Client::Done<int64_t> done) {
  int64_t seconds = 1;
  while (absl::Seconds(seconds) < retention) seconds *= 2;
  int64_t lease = 0;
  {
    MutexLock lock(&mu_);
    Class& entry = classes_[seconds];
    if (entry.lease != 0 && client_->Now() < entry.until && entry.keys + keys <= keys_per_lease_) {
      entry.keys += keys;
      lease = entry.lease;
    } else {
      entry.waiting.push_back({keys, std::exchange(done, nullptr)});
      if (std::exchange(entry.granting, true)) return;
    }
  }
  if (lease == 0) return Grant(seconds);
  std::move(done)(lease);
}

void TombstoneLeases::Grant(int64_t seconds) {
  // Counted from before the call: the lease is younger than that.
  const SteadyTime until = client_->Now() + absl::Seconds(seconds);
  client_->LeaseGrant(2 * seconds, [this, seconds, until](absl::StatusOr<int64_t> lease) {
    std::vector<Waiter> served;
    bool again = false;
    {
      MutexLock lock(&mu_);
      Class& entry = classes_[seconds];
      if (lease.ok()) {
        entry.lease = *lease;
        entry.keys = 0;
        entry.until = until;
      }
      std::vector<Waiter> waiting;
      waiting.swap(entry.waiting);
      for (Waiter& waiter : waiting) {
        if (!lease.ok() || entry.keys == 0 || entry.keys + waiter.keys <= keys_per_lease_) {
          entry.keys += waiter.keys;
          served.push_back(std::move(waiter));
        } else {
          entry.waiting.push_back(std::move(waiter));
        }
      }
      again = entry.granting = !entry.waiting.empty();
    }
    for (Waiter& waiter : served) std::move(waiter.done)(lease);
    if (again) Grant(seconds);
  });
}

void TombstoneLeases::Drop(int64_t lease) {
  MutexLock lock(&mu_);
  for (auto& [seconds, entry] : classes_) {
    if (entry.lease == lease) entry.lease = 0;
  }
}

}  // namespace etcd
}  // namespace failback
