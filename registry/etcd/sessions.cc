#include "registry/etcd/sessions.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/random/random.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/error.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/txn.h"
#include "registry/model/errors.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::LeaseRevokeResponse;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using failback::etcd::v1::IncarnationRecord;
using failback::etcd::v1::SessionRecord;

constexpr absl::Duration kIncarnationRenewal = absl::Hours(1);

}  // namespace

absl::Status SessionContended() {
  return absl::AbortedError("another server changes the same session all the time");
}

bool Session::Has(int64_t lease) const {
  MutexLock lock(&mu);
  return std::any_of(leases.begin(), leases.end(),
                     [&](const Lease& entry) { return entry.id == lease; });
}

bool Session::Keeps(int64_t lease) const {
  MutexLock lock(&mu);
  return std::any_of(leases.begin(), leases.end(),
                     [&](const Lease& entry) { return entry.id == lease && !entry.retiring; });
}

void Session::SetCounted(const std::vector<int64_t>& fresh) {
  MutexLock lock(&mu);
  for (Lease& entry : leases) {
    const bool is_fresh = std::find(fresh.begin(), fresh.end(), entry.id) != fresh.end();
    if (is_fresh && entry.keys == kUncounted) entry.keys = 0;
  }
}

int64_t Session::KeyLease() const {
  MutexLock lock(&mu);
  return leases.front().id;
}

int64_t Sessions::LeaseSeconds(absl::Duration ttl) const {
  absl::BitGen random;
  const double spread = absl::Uniform(absl::IntervalClosed, random, 0.0, options_.lease_spread);
  return static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(ttl) * (1 + spread)));
}

void Sessions::Revoke(int64_t lease) {
  if (lease == 0) return;
  // If this fails it ends by itself.
  client_->LeaseRevoke(lease, [](const absl::StatusOr<LeaseRevokeResponse>&) {});
}

SessionPtr Sessions::Adopt(const std::string& session_id, const mvccpb::KeyValue& kv) {
  SessionRecord record;
  if (!record.ParseFromString(kv.value()) || record.incarnation().empty() ||
      record.leases_size() == 0 || record.ttl_ms() <= 0 || record.closed()) {
    return nullptr;
  }
  SessionPtr session;
  {
    MutexLock lock(&mu_);
    SessionPtr& entry = sessions_[session_id];
    if (entry == nullptr || entry->create_revision != kv.create_revision()) {
      entry = std::make_shared<Session>();
      entry->id = session_id;
      entry->incarnation = record.incarnation();
      entry->client_name = record.client_name();
      entry->rank =
          record.rank() != 0 ? record.rank() : static_cast<uint64_t>(kv.create_revision());
      entry->create_revision = kv.create_revision();
      entry->incarnation_lease = record.incarnation_lease();
    }
    session = entry;
  }
  MutexLock lock(&session->mu);
  session->last_used = client_->Now();
  if (kv.mod_revision() <= session->mod_revision) return session;
  session->mod_revision = kv.mod_revision();
  session->ttl_ms = record.ttl_ms();
  std::vector<Session::Lease> leases;
  for (const int64_t lease : record.leases()) {
    const auto known = std::find_if(session->leases.begin(), session->leases.end(),
                                    [&](const Session::Lease& entry) { return entry.id == lease; });
    const bool retiring = std::find(record.retiring().begin(), record.retiring().end(), lease) !=
                          record.retiring().end();
    leases.push_back(
        {lease, known == session->leases.end() ? Session::kUncounted : known->keys, retiring});
  }
  session->leases = std::move(leases);
  return session;
}

void Sessions::Find(const std::string& session_id, Client::Done<SessionPtr> done) {
  SessionPtr known;
  {
    MutexLock lock(&mu_);
    if (const auto it = sessions_.find(session_id); it != sessions_.end()) known = it->second;
  }
  if (known != nullptr) {
    {
      MutexLock lock(&known->mu);
      known->last_used = client_->Now();
    }
    return std::move(done)(std::move(known));
  }
  client_->Get(keys_->Session(session_id), [this, session_id, done = std::move(done)](
                                               absl::StatusOr<RangeResponse> response) mutable {
    if (!response.ok()) return std::move(done)(response.status());
    SessionPtr session = response->kvs_size() == 0 ? nullptr : Adopt(session_id, response->kvs(0));
    if (session == nullptr) return std::move(done)(SessionUnknown());
    std::move(done)(std::move(session));
  });
}

void Sessions::Renew(const std::string& session_id, Client::Done<Renewed> done) {
  // The key is read each time: another server may have given the session further leases.
  TxnRequest read;
  identity_->AddTo(&read);
  AddGet(keys_->Session(session_id), read.mutable_success());
  client_->Txn(std::move(read), [this, session_id, done = std::move(done)](
                                    absl::StatusOr<TxnResponse> response) mutable {
    if (!response.ok()) return std::move(done)(response.status());
    const Store store = identity_->Take(*response);
    const mvccpb::KeyValue* const kv = Found(*response, Identity::kGets);
    SessionPtr session = kv == nullptr ? nullptr : Adopt(session_id, *kv);
    if (session == nullptr) {
      Forget(session_id);
      return std::move(done)(SessionUnknown());
    }
    MoveRetiring(session);  // that another server has begun and not ended, too
    RenewLeases(std::move(session), store, static_cast<uint64_t>(response->header().revision()),
                std::move(done));
  });
}

void Sessions::RenewLeases(SessionPtr session, Store store, uint64_t revision,
                           Client::Done<Renewed> done) {
  std::vector<int64_t> leases;
  bool renew_incarnation = false;
  {
    MutexLock lock(&session->mu);
    for (const Session::Lease& lease : session->leases) leases.push_back(lease.id);
    if (client_->Now() - session->incarnation_renewed > kIncarnationRenewal) {
      session->incarnation_renewed = client_->Now();
      renew_incarnation = session->incarnation_lease != 0;
    }
  }
  if (renew_incarnation) {
    // The rank is in the session's key as well: a failure does no harm.
    renewer_.Renew(session->incarnation_lease, [](const absl::StatusOr<int64_t>&) {});
  }
  struct Lost {
    Mutex mu;
    std::vector<int64_t> leases ABSL_GUARDED_BY(mu);
  };
  const auto lost = std::make_shared<Lost>();
  auto gather =
      std::make_shared<Gather>([this, session, store, revision, lost,
                                done = std::move(done)](const absl::Status& status) mutable {
        std::vector<int64_t> gone;
        {
          MutexLock lock(&lost->mu);
          gone.swap(lost->leases);
        }
        if (!gone.empty()) {
          return Lose(session, std::move(gone),
                      [this, session, store, revision,
                       done = std::move(done)](const absl::Status& ended) mutable {
                        if (!ended.ok()) return std::move(done)(ended);
                        RenewLeases(session, store, revision, std::move(done));
                      });
        }
        if (!status.ok()) return std::move(done)(status);
        Renewed renewed;
        renewed.session = std::move(session);
        renewed.store = std::move(store);
        renewed.revision = revision;
        std::move(done)(std::move(renewed));
      });
  for (const int64_t lease : leases) {
    renewer_.Renew(lease, [gather, lost, lease](absl::StatusOr<int64_t> ttl) {
      if (ttl.ok() && *ttl <= 0) {
        MutexLock lock(&lost->mu);
        lost->leases.push_back(lease);
      }
      gather->Note(ttl.status());
    });
  }
}

void Sessions::Lose(const SessionPtr& session, std::vector<int64_t> leases,
                    absl::AnyInvocable<void(absl::Status) &&> done) {
  client_->Get(keys_->Session(session->id),
               [this, session, leases = std::move(leases),
                done = std::move(done)](absl::StatusOr<RangeResponse> response) mutable {
                 if (!response.ok()) return std::move(done)(response.status());
                 if (!Refresh(*session, response->kvs_size() == 0 ? nullptr : &response->kvs(0))) {
                   return std::move(done)(SessionUnknown());
                 }
                 const bool its_own = std::any_of(leases.begin(), leases.end(), [&](int64_t lease) {
                   return session->Has(lease);
                 });
                 if (!its_own) return std::move(done)(absl::OkStatus());
                 End(session, std::move(done));
               });
}

void Sessions::End(const SessionPtr& session, absl::AnyInvocable<void(absl::Status) &&> done) {
  const std::string key = keys_->Session(session->id);
  TxnRequest write;
  CompareCreated(key, session->create_revision, &write);
  AddDelete(key, write.mutable_success());
  client_->Txn(std::move(write), [this, session, done = std::move(done)](
                                     const absl::StatusOr<TxnResponse>& response) mutable {
    if (!response.ok()) return std::move(done)(response.status());
    Forget(session->id);
    std::move(done)(SessionUnknown());
  });
}

void Sessions::AddLease(const std::string& session_id, const SessionRecord& session, int64_t lease,
                        TxnRequest* write) const {
  SessionRecord record;
  record.set_incarnation(session.incarnation());
  record.set_rank(session.rank());
  record.set_incarnation_lease(session.incarnation_lease());
  AddPut(keys_->Lease(session_id, lease), record.SerializeAsString(), lease,
         write->mutable_success());
}

bool Sessions::Refresh(const Session& session, const mvccpb::KeyValue* kv) {
  if (kv == nullptr || kv->create_revision() != session.create_revision) {
    Forget(session.id);
    return false;
  }
  if (Adopt(session.id, *kv) != nullptr) return true;
  Forget(session.id);
  return false;
}

void Sessions::Update(const SessionPtr& session, absl::FunctionRef<void(SessionRecord*)> change,
                      Client::Done<bool> done) {
  const std::string key = keys_->Session(session->id);
  SessionRecord record;
  TxnRequest write;
  {
    MutexLock lock(&session->mu);
    record = RecordOf(*session);
    CompareModified(key, session->mod_revision, &write);
  }
  const absl::flat_hash_set<int64_t> before(record.leases().begin(), record.leases().end());
  change(&record);
  mvccpb::KeyValue kv;
  kv.set_value(record.SerializeAsString());
  kv.set_create_revision(session->create_revision);
  AddPut(key, kv.value(), record.leases(0), write.mutable_success());
  for (const int64_t lease : record.leases()) {
    if (before.count(lease) == 0) AddLease(session->id, record, lease, &write);
  }
  AddGet(key, write.mutable_failure());
  client_->Txn(std::move(write), [this, session, kv = std::move(kv), done = std::move(done)](
                                     absl::StatusOr<TxnResponse> response) mutable {
    if (!response.ok()) return std::move(done)(response.status());
    if (response->succeeded()) {
      kv.set_mod_revision(response->header().revision());
      Adopt(session->id, kv);
      return std::move(done)(true);
    }
    if (!Refresh(*session, Found(*response, 0))) return std::move(done)(SessionUnknown());
    std::move(done)(false);
  });
}

void Sessions::Forget(const std::string& session_id) {
  {
    MutexLock lock(&mu_);
    sessions_.erase(session_id);
  }
  on_end_(session_id);
}

void Sessions::Close(const std::string& session_id, Client::Done<uint64_t> done) {
  TxnRequest read;
  AddGet(keys_->Session(session_id), read.mutable_success());
  AddGet(keys_->LeasesOf(session_id), read.mutable_success());
  client_->Txn(std::move(read), [this, session_id, done = std::move(done)](
                                    absl::StatusOr<TxnResponse> response) mutable {
    if (!response.ok()) return std::move(done)(response.status());
    CloseAsRead(session_id, *response, 0, std::move(done));
  });
}

// A lease that a server gives the session while its leases are revoked would keep what is on it: so
// the session's key says first that it is closed. What fails after that can be repeated.
void Sessions::CloseAsRead(const std::string& session_id, const TxnResponse& found, int tries,
                           Client::Done<uint64_t> done) {
  const mvccpb::KeyValue* const kv = Found(found, 0);
  SessionRecord record;
  if (kv != nullptr) record.ParseFromString(kv->value());
  absl::flat_hash_set<int64_t> known(record.leases().begin(), record.leases().end());
  for (const mvccpb::KeyValue& lease : found.responses(1).response_range().kvs()) {
    if (record.incarnation().empty()) record.ParseFromString(lease.value());
    if (known.insert(lease.lease()).second) record.add_leases(lease.lease());
  }
  if (record.leases_size() == 0) {
    Forget(session_id);
    return std::move(done)(static_cast<uint64_t>(found.header().revision()));
  }
  if (kv == nullptr || record.closed()) return NoteClosed(session_id, record, std::move(done));
  record.set_closed(true);
  const std::string key = keys_->Session(session_id);
  TxnRequest write;
  CompareModified(key, kv->mod_revision(), &write);
  AddPut(key, record.SerializeAsString(), kv->lease(), write.mutable_success());
  AddGet(key, write.mutable_failure());
  AddGet(keys_->LeasesOf(session_id), write.mutable_failure());
  client_->Txn(std::move(write), [this, session_id, record, tries, done = std::move(done)](
                                     absl::StatusOr<TxnResponse> response) mutable {
    if (IsTransient(response.status())) return std::move(done)(response.status());
    // An etcd that is full takes no put, and ends leases all the same.
    if (!response.ok() || response->succeeded()) {
      return NoteClosed(session_id, record, std::move(done));
    }
    if (tries + 1 >= kMaxTries) return std::move(done)(SessionContended());
    CloseAsRead(session_id, *response, tries + 1, std::move(done));
  });
}

// What goes with the session's leases has left on purpose (registry/etcd/fences.h): before they are
// revoked.
void Sessions::NoteClosed(const std::string& session_id, const SessionRecord& record,
                          Client::Done<uint64_t> done) {
  const std::string key = keys_->Incarnation(record.incarnation());
  IncarnationRecord incarnation;
  incarnation.set_session_id(session_id);
  incarnation.set_rank(record.rank());
  *incarnation.mutable_closed_leases() = record.leases();
  TxnRequest write;
  // Of this session still, not of a later one.
  CompareLease(key, record.incarnation_lease(), &write);
  AddPut(key, incarnation.SerializeAsString(), record.incarnation_lease(), write.mutable_success());
  client_->Txn(std::move(write), [this, session_id, record, done = std::move(done)](
                                     const absl::StatusOr<TxnResponse>& response) mutable {
    if (IsTransient(response.status())) return std::move(done)(response.status());
    RevokeLeases(session_id, record, std::move(done));
  });
}

void Sessions::RevokeLeases(const std::string& session_id, const SessionRecord& record,
                            Client::Done<uint64_t> done) {
  // The first lease has the session's key, if that is there: it goes last, so that what fails on
  // the way can be repeated.
  auto last = [this, session_id, first = record.leases(0), was_there = record.closed(),
               done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) return std::move(done)(status);
    client_->LeaseRevoke(first, [this, session_id, was_there, done = std::move(done)](
                                    absl::StatusOr<LeaseRevokeResponse> response) mutable {
      if (!response.ok() && ErrorOf(response.status()) != Error::kLeaseNotFound) {
        return std::move(done)(response.status());
      }
      if (response.ok() && was_there) limits_->Removed(Limits::kSessions, 1);
      Forget(session_id);
      std::move(done)(response.ok() ? static_cast<uint64_t>(response->header().revision()) : 0);
    });
  };
  auto gather = std::make_shared<Gather>(std::move(last));
  for (int i = 1; i < record.leases_size(); ++i) {
    client_->LeaseRevoke(record.leases(i),
                         [gather](const absl::StatusOr<LeaseRevokeResponse>& response) {
                           if (ErrorOf(response.status()) != Error::kLeaseNotFound) {
                             gather->Note(response.status());
                           }
                         });
  }
}

void Sessions::Sweep() {
  const SteadyTime now = client_->Now();
  MutexLock lock(&mu_);
  absl::erase_if(sessions_, [&](const auto& entry) {
    MutexLock session(&entry.second->mu);
    return entry.second->last_used + 2 * entry.second->ttl() < now && !entry.second->growing &&
           !entry.second->moving;
  });
}

}  // namespace etcd
}  // namespace failback
