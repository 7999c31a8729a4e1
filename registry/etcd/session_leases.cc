// How a session's instances are spread over its leases.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "registry/etcd/error.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/sessions.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::LeaseTimeToLiveResponse;
using failback::etcd::v1::SessionRecord;

// What a session has is not counted again before.
constexpr absl::Duration kCountAgain = absl::Seconds(5);
// New leases at a time.
constexpr int64_t kMostAtOnce = 32;

// A lease with room for `keys`, or 0.
int64_t FindRoom(std::vector<Session::Lease>* leases, int64_t keys, int64_t most) {
  for (Session::Lease& lease : *leases) {
    if (lease.retiring || lease.keys == Session::kUncounted || lease.keys + keys > most) continue;
    lease.keys += keys;
    return lease.id;
  }
  return 0;
}

}  // namespace

void Sessions::TakeRoom(const SessionPtr& session, int64_t keys, Client::Done<int64_t> done) {
  int64_t lease;
  {
    MutexLock lock(&session->mu);
    lease = FindRoom(&session->leases, keys, options_.keys_per_lease);
    if (lease == 0) {
      session->waiting.push_back({keys, std::exchange(done, nullptr)});
      if (std::exchange(session->growing, true)) return;
    }
  }
  if (lease == 0) return Grow(session);
  std::move(done)(lease);
}

std::optional<int64_t> Session::Held() const {
  MutexLock lock(&mu);
  int64_t keys = 0;
  for (const Lease& lease : leases) {
    if (lease.keys == kUncounted) return std::nullopt;
    keys += lease.keys;
  }
  return keys;
}

void Sessions::Count(const SessionPtr& session, absl::AnyInvocable<void(absl::Status) &&> done) {
  std::vector<int64_t> leases;
  {
    MutexLock lock(&session->mu);
    const SteadyTime now = client_->Now();
    const bool recent = now - session->counted < kCountAgain;
    for (const Session::Lease& lease : session->leases) {
      if (!recent || lease.keys == Session::kUncounted) leases.push_back(lease.id);
    }
    if (!recent) session->counted = now;
  }
  ReadCounts(session, leases, std::move(done));
}

void Sessions::GiveRoom(const SessionPtr& session, int64_t lease, int64_t keys) {
  MutexLock lock(&session->mu);
  for (Session::Lease& entry : session->leases) {
    if (entry.id == lease && entry.keys != Session::kUncounted) {
      entry.keys = std::max<int64_t>(0, entry.keys - keys);
    }
  }
}

SessionRecord Sessions::RecordOf(const Session& session) {
  SessionRecord record;
  record.set_incarnation(session.incarnation);
  record.set_rank(session.rank);
  record.set_client_name(session.client_name);
  record.set_ttl_ms(session.ttl_ms);
  for (const Session::Lease& lease : session.leases) {
    record.add_leases(lease.id);
    if (lease.retiring) record.add_retiring(lease.id);
  }
  record.set_incarnation_lease(session.incarnation_lease);
  return record;
}

// Leases that another server has filled may have room; then new ones are granted.
void Sessions::Grow(const SessionPtr& session) {
  std::vector<int64_t> uncounted;
  int64_t wanted = 0;
  {
    MutexLock lock(&session->mu);
    for (const Session::Lease& lease : session->leases) {
      if (lease.keys == Session::kUncounted && !lease.retiring) uncounted.push_back(lease.id);
    }
    int64_t keys = 0;
    for (const Session::Waiter& waiter : session->waiting) keys += waiter.keys;
    wanted =
        std::clamp<int64_t>(std::max<int64_t>(keys / options_.keys_per_lease + 1,
                                              static_cast<int64_t>(session->leases.size()) / 4),
                            1, kMostAtOnce);
  }
  if (!uncounted.empty()) return CountLeases(session, uncounted);
  const auto granted = std::make_shared<std::vector<int64_t>>();
  const auto granted_mu = std::make_shared<Mutex>();
  auto gather = std::make_shared<Gather>([this, session, granted](const absl::Status& status) {
    if (granted->empty()) return Grown(session, status);
    AddLeases(session, *granted, 0);
  });
  for (int64_t i = 0; i < wanted; ++i) {
    client_->LeaseGrant(LeaseSeconds(session->ttl()),
                        [gather, granted, granted_mu](absl::StatusOr<int64_t> lease) {
                          gather->Note(lease.status());
                          if (!lease.ok()) return;
                          MutexLock lock(granted_mu.get());
                          granted->push_back(*lease);
                        });
  }
}

void Sessions::CountLeases(const SessionPtr& session, const std::vector<int64_t>& uncounted) {
  ReadCounts(session, uncounted,
             [this, session](const absl::Status& status) { Grown(session, status); });
}

void Sessions::ReadCounts(const SessionPtr& session, const std::vector<int64_t>& uncounted,
                          absl::AnyInvocable<void(absl::Status) &&> done) {
  auto gather = std::make_shared<Gather>(std::move(done));
  for (const int64_t lease : uncounted) {
    client_->LeaseTimeToLive(
        lease, /*keys=*/true,
        [this, gather, session, lease](absl::StatusOr<LeaseTimeToLiveResponse> answer) {
          gather->Note(answer.status());
          if (!answer.ok()) return;
          const auto instances =
              std::count_if(answer->keys().begin(), answer->keys().end(),
                            [&](const auto& key) { return keys_->ParseInstance(key).has_value(); });
          MutexLock lock(&session->mu);
          for (Session::Lease& entry : session->leases) {
            if (entry.id == lease) entry.keys = instances;
          }
        });
  }
}

// Writes down that the leases are the session's, before anything is put on them: who renews the
// session reads it there.
void Sessions::AddLeases(const SessionPtr& session, std::vector<int64_t> leases, int tries) {
  const auto add = [&](SessionRecord* record) {
    for (const int64_t lease : leases) record->add_leases(lease);
  };
  Update(session, add, [this, session, leases, tries](absl::StatusOr<bool> written) {
    bool has_all = written.ok();
    if (written.ok() && *written) {
      session->SetCounted(leases);
    } else {
      // Another server was faster; or this very write was, and its answer was lost.
      for (const int64_t lease : leases) has_all = has_all && session->Has(lease);
    }
    if (has_all) return Grown(session, absl::OkStatus());
    if (written.ok() && tries + 1 < kMaxTries) return AddLeases(session, leases, tries + 1);
    for (const int64_t lease : leases) Revoke(lease);
    if (written.ok()) return Grown(session, SessionContended());
    // They have ended before they were written down: the session has not.
    const bool ended = ErrorOf(written.status()) == Error::kLeaseNotFound;
    Grown(session, ended ? absl::UnavailableError("etcd answered for longer than a lease lives")
                         : written.status());
  });
}

// Serves those who wait, as far as there is room.
void Sessions::Grown(const SessionPtr& session, const absl::Status& status) {
  std::vector<std::pair<Client::Done<int64_t>, int64_t>> served;
  std::vector<Session::Waiter> failed;
  bool grow = false;
  {
    MutexLock lock(&session->mu);
    std::vector<Session::Waiter> waiting;
    waiting.swap(session->waiting);
    for (Session::Waiter& waiter : waiting) {
      const int64_t lease = FindRoom(&session->leases, waiter.keys, options_.keys_per_lease);
      if (lease != 0) {
        served.emplace_back(std::move(waiter.done), lease);
      } else {
        (status.ok() ? session->waiting : failed).push_back(std::move(waiter));
      }
    }
    grow = !session->waiting.empty();
    session->growing = grow;
  }
  for (auto& [done, lease] : served) std::move(done)(lease);
  for (Session::Waiter& waiter : failed) std::move(waiter.done)(status);
  if (grow) Grow(session);
}

}  // namespace etcd
}  // namespace failback
