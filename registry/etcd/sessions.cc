#include "registry/etcd/sessions.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/random/random.h"
#include "registry/base/proto_time.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/error.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/txn.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::LeaseGrantRequest;
using etcdserverpb::LeaseGrantResponse;
using etcdserverpb::LeaseRevokeRequest;
using etcdserverpb::LeaseRevokeResponse;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using failback::etcd::v1::IncarnationRecord;
using failback::etcd::v1::SessionRecord;

constexpr absl::Duration kIncarnationRenewal = absl::Hours(1);

absl::Status Contended() {
  return absl::AbortedError("another server changes the same session all the time");
}

}  // namespace

absl::Status SessionUnknown() {
  return Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                 "session_id: the session has ended, or never was: open a new one");
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

int64_t Session::KeyLease() const {
  MutexLock lock(&mu);
  return leases.front().id;
}

// An OpenSession on its way.
struct Sessions::Opening {
  OpenSessionRequest request;
  Client::Done<Opened> done;
  Store store;
  absl::Duration ttl;
  uint64_t rank = 0;             // 0: the revision that creates the incarnation
  bool claimed = false;          // the rank is not that revision: it has a key of its own
  bool claims = false;           // and gets it now
  int64_t incarnation_seen = 0;  // mod_revision of its key; 0: not there
  int64_t incarnation_lease = 0;
  int64_t replaced_lease = 0;  // that the incarnation had before
  IncarnationRecord before;    // what it had
  int64_t lease = 0;
  int tries = 0;
  Limits* limits = nullptr;  // where a place is reserved for the session

  void Settle(bool written) {
    if (limits != nullptr) limits->Settle(Limits::kSessions, 1, written);
    limits = nullptr;
  }
  ~Opening() { Settle(false); }
  void Fail(const absl::Status& status) { std::move(done)(status); }
};

absl::Duration Sessions::ClampTtl(const google::protobuf::Duration& ttl) const {
  absl::Duration wanted = FromProto(ttl);
  if (wanted == absl::ZeroDuration()) wanted = options_.default_ttl;
  return absl::Ceil(std::clamp(wanted, options_.min_ttl, options_.max_ttl), absl::Milliseconds(1));
}

int64_t Sessions::LeaseSeconds(absl::Duration ttl) const {
  absl::BitGen random;
  const double spread = absl::Uniform(absl::IntervalClosed, random, 0.0, options_.lease_spread);
  return static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(ttl) * (1 + spread)));
}

void Sessions::Open(const OpenSessionRequest& request, Client::Done<Opened> done) {
  auto opening = std::make_shared<Opening>();
  opening->request = request;
  opening->done = std::move(done);
  opening->ttl = ClampTtl(request.ttl());
  identity_->Ensure([this, opening](absl::StatusOr<Store> store) {
    if (!store.ok()) return opening->Fail(store.status());
    opening->store = *std::move(store);
    ReadIncarnation(opening);
  });
}

void Sessions::Finish(Opening* opening, Opened opened) {
  renewer_.Hold();
  std::move(opening->done)(std::move(opened));
}

void Sessions::ReadIncarnation(const std::shared_ptr<Opening>& opening) {
  if (++opening->tries > kMaxTries) return opening->Fail(Contended());
  RangeRequest read;
  read.set_key(keys_->Incarnation(opening->request.incarnation()));
  client_->Range(std::move(read), [this, opening](absl::StatusOr<RangeResponse> response) {
    if (!response.ok()) return opening->Fail(response.status());
    IncarnationRecord record;
    opening->incarnation_seen = 0;
    opening->before.Clear();
    opening->replaced_lease = 0;
    opening->rank = 0;
    opening->claimed = opening->claims = false;
    if (response->kvs_size() > 0) {
      const mvccpb::KeyValue& kv = response->kvs(0);
      record.ParseFromString(kv.value());
      opening->before = record;
      opening->incarnation_seen = kv.mod_revision();
      opening->replaced_lease = kv.lease();
      opening->rank =
          record.rank() != 0 ? record.rank() : static_cast<uint64_t>(kv.create_revision());
      opening->claimed = opening->rank != static_cast<uint64_t>(kv.create_revision());
      // It is its owner's as long as it is remembered.
      const std::string owner = SessionOwner(record.session_id());
      if (!owner.empty() && !opening->request.owner().empty() &&
          owner != opening->request.owner()) {
        return opening->Fail(SessionNotOwned());
      }
      if (!record.session_id().empty()) return ReadSession(opening, record.session_id());
    } else if (opening->request.rank() > 0 &&
               opening->request.store_id() == opening->store.store_id &&
               opening->request.rank() <= static_cast<uint64_t>(response->header().revision())) {
      return CheckClaim(opening);  // given by this store, and forgotten since
    }
    GrantLeases(opening);
  });
}

// It may not when another incarnation has it: by claiming it, or as its key was created at that
// revision.
void Sessions::CheckClaim(const std::shared_ptr<Opening>& opening) {
  const uint64_t rank = opening->request.rank();
  TxnRequest read;
  AddGet(keys_->Rank(rank), read.mutable_success());
  const KeyRange incarnations = keys_->Incarnations();
  auto* created = read.mutable_success()->Add()->mutable_request_range();
  created->set_key(incarnations.begin);
  created->set_range_end(incarnations.end);
  created->set_min_create_revision(static_cast<int64_t>(rank));
  created->set_max_create_revision(static_cast<int64_t>(rank));
  created->set_keys_only(true);
  created->set_limit(1);
  client_->Txn(std::move(read), [this, opening, rank](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return opening->Fail(response.status());
    opening->claimed = opening->claims =
        Found(*response, 0) == nullptr && Found(*response, 1) == nullptr;
    if (opening->claims) opening->rank = rank;
    GrantLeases(opening);
  });
}

void Sessions::ReadSession(const std::shared_ptr<Opening>& opening, const std::string& session_id) {
  RangeRequest read;
  read.set_key(keys_->Session(session_id));
  client_->Range(
      std::move(read), [this, opening, session_id](absl::StatusOr<RangeResponse> response) {
        if (!response.ok()) return opening->Fail(response.status());
        if (response->kvs_size() == 0) {
          Forget(session_id);
          return GrantLeases(opening);
        }
        if (!MayResumeSession(session_id, opening->request.owner())) {
          return opening->Fail(SessionNotOwned());
        }
        Opened opened;
        opened.session = Adopt(session_id, response->kvs(0));
        opened.store = opening->store;
        opened.resumed = true;
        if (opened.session == nullptr) return GrantLeases(opening);
        const SessionPtr session = opened.session;
        if (session->ttl() == opening->ttl) {
          return Finish(opening.get(), std::move(opened));
        }
        Retime(session, opening->ttl, 0, [this, opening, opened](const absl::Status& status) {
          // It has ended just now.
          if (ReasonOf(status) == registry::v1::ERROR_REASON_SESSION_UNKNOWN) {
            return ReadIncarnation(opening);
          }
          if (!status.ok()) return opening->Fail(status);
          Finish(opening.get(), opened);
        });
      });
}

// One lease for the session; one for the incarnation, which has a day again.
void Sessions::GrantLeases(const std::shared_ptr<Opening>& opening) {
  if (opening->limits == nullptr) {
    if (limits_->Reserve(Limits::kSessions, 1) == 0) {
      return opening->Fail(limits_->Reached(Limits::kSessions));
    }
    opening->limits = limits_;
  }
  auto gather = std::make_shared<Gather>([this, opening](const absl::Status& status) {
    if (status.ok()) return Create(opening);
    Revoke(opening->lease);
    opening->Fail(status);
  });
  LeaseGrantRequest grant;
  grant.set_ttl(LeaseSeconds(opening->ttl));
  client_->LeaseGrant(grant, [opening, gather](absl::StatusOr<LeaseGrantResponse> response) {
    if (response.ok()) opening->lease = response->id();
    gather->Note(response.status());
  });
  grant.set_ttl(absl::ToInt64Seconds(options_.incarnation_memory));
  client_->LeaseGrant(std::move(grant),
                      [opening, gather](absl::StatusOr<LeaseGrantResponse> response) {
                        if (response.ok()) opening->incarnation_lease = response->id();
                        gather->Note(response.status());
                      });
}

void Sessions::Create(const std::shared_ptr<Opening>& opening) {
  const std::string session_id = NewSessionId(opening->request.owner());
  SessionRecord session;
  session.set_incarnation(opening->request.incarnation());
  session.set_rank(opening->rank);
  session.set_client_name(opening->request.client_name());
  session.set_ttl_ms(absl::ToInt64Milliseconds(opening->ttl));
  session.add_leases(opening->lease);
  session.set_incarnation_lease(opening->incarnation_lease);
  IncarnationRecord incarnation;
  incarnation.set_session_id(session_id);
  incarnation.set_rank(opening->rank);
  *incarnation.mutable_closed_leases() = opening->before.closed_leases();
  const std::string incarnation_key = keys_->Incarnation(opening->request.incarnation());
  TxnRequest write;
  CompareModified(incarnation_key, opening->incarnation_seen, &write);
  AddPut(keys_->Session(session_id), session.SerializeAsString(), opening->lease,
         write.mutable_success());
  AddPut(incarnation_key, incarnation.SerializeAsString(), opening->incarnation_lease,
         write.mutable_success());
  if (opening->claimed) {
    const std::string rank_key = keys_->Rank(opening->rank);
    if (opening->claims) CompareModified(rank_key, 0, &write);
    AddPut(rank_key, opening->request.incarnation(), opening->incarnation_lease,
           write.mutable_success());
  }
  client_->Txn(std::move(write),
               [this, opening, session_id, session](absl::StatusOr<TxnResponse> response) {
                 if (!response.ok()) {
                   // It may have been done all the same: then the next OpenSession finds it.
                   return opening->Fail(response.status());
                 }
                 if (!response->succeeded()) {
                   Revoke(opening->lease);
                   Revoke(opening->incarnation_lease);
                   return ReadIncarnation(opening);
                 }
                 opening->Settle(true);
                 Revoke(opening->replaced_lease);
                 mvccpb::KeyValue kv;
                 kv.set_value(session.SerializeAsString());
                 kv.set_create_revision(response->header().revision());
                 kv.set_mod_revision(response->header().revision());
                 Opened opened;
                 opened.session = Adopt(session_id, kv);
                 opened.store = opening->store;
                 {
                   MutexLock lock(&opened.session->mu);
                   opened.session->leases.front().keys = 1;  // the session's own
                   opened.session->incarnation_renewed = SteadyNow();
                 }
                 Finish(opening.get(), std::move(opened));
               });
}

void Sessions::Revoke(int64_t lease) {
  if (lease == 0) return;
  LeaseRevokeRequest request;
  request.set_id(lease);
  // If this fails it ends by itself.
  client_->LeaseRevoke(std::move(request), [](const absl::StatusOr<LeaseRevokeResponse>&) {});
}

SessionPtr Sessions::Adopt(const std::string& session_id, const mvccpb::KeyValue& kv) {
  SessionRecord record;
  if (!record.ParseFromString(kv.value()) || record.incarnation().empty() ||
      record.leases_size() == 0 || record.ttl_ms() <= 0) {
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
  session->last_used = SteadyNow();
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
      known->last_used = SteadyNow();
    }
    return std::move(done)(std::move(known));
  }
  RangeRequest read;
  read.set_key(keys_->Session(session_id));
  client_->Range(std::move(read), [this, session_id, done = std::move(done)](
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
    if (SteadyNow() - session->incarnation_renewed > kIncarnationRenewal) {
      session->incarnation_renewed = SteadyNow();
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
  RangeRequest read;
  read.set_key(keys_->Session(session->id));
  client_->Range(
      std::move(read), [this, session, leases = std::move(leases),
                        done = std::move(done)](absl::StatusOr<RangeResponse> response) mutable {
        if (!response.ok()) return std::move(done)(response.status());
        if (response->kvs_size() == 0 ||
            response->kvs(0).create_revision() != session->create_revision) {
          Forget(session->id);
          return std::move(done)(SessionUnknown());
        }
        Adopt(session->id, response->kvs(0));
        const bool its_own = std::any_of(leases.begin(), leases.end(),
                                         [&](int64_t lease) { return session->Has(lease); });
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

void Sessions::AdoptWritten(const Session& session, const std::string& value, int64_t revision) {
  mvccpb::KeyValue kv;
  kv.set_value(value);
  kv.set_create_revision(session.create_revision);
  kv.set_mod_revision(revision);
  Adopt(session.id, kv);
}

void Sessions::Forget(const std::string& session_id) {
  {
    MutexLock lock(&mu_);
    sessions_.erase(session_id);
  }
  on_end_(session_id);
}

void Sessions::Close(const std::string& session_id, Client::Done<uint64_t> done) {
  RangeRequest read;
  read.set_key(keys_->Session(session_id));
  client_->Range(std::move(read), [this, session_id, done = std::move(done)](
                                      absl::StatusOr<RangeResponse> response) mutable {
    if (!response.ok()) return std::move(done)(response.status());
    SessionRecord record;
    if (response->kvs_size() > 0) record.ParseFromString(response->kvs(0).value());
    if (record.leases_size() == 0) {
      Forget(session_id);
      return std::move(done)(static_cast<uint64_t>(response->header().revision()));
    }
    NoteClosed(session_id, record, std::move(done));
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
    // An etcd that is full takes no put, and ends leases all the same.
    if (IsTransient(response.status())) return std::move(done)(response.status());
    RevokeLeases(session_id, record, std::move(done));
  });
}

void Sessions::RevokeLeases(const std::string& session_id, const SessionRecord& record,
                            Client::Done<uint64_t> done) {
  // The first lease has the session's key: it goes last, so that what fails on the way can be
  // repeated.
  auto last = [this, session_id, first = record.leases(0),
               done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) return std::move(done)(status);
    LeaseRevokeRequest revoke;
    revoke.set_id(first);
    client_->LeaseRevoke(
        std::move(revoke), [this, session_id, done = std::move(done)](
                               absl::StatusOr<LeaseRevokeResponse> response) mutable {
          if (!response.ok() && ErrorOf(response.status()) != Error::kLeaseNotFound) {
            return std::move(done)(response.status());
          }
          if (response.ok()) limits_->Removed(Limits::kSessions, 1);
          Forget(session_id);
          std::move(done)(response.ok() ? static_cast<uint64_t>(response->header().revision()) : 0);
        });
  };
  auto gather = std::make_shared<Gather>(std::move(last));
  for (int i = 1; i < record.leases_size(); ++i) {
    LeaseRevokeRequest revoke;
    revoke.set_id(record.leases(i));
    client_->LeaseRevoke(std::move(revoke),
                         [gather](const absl::StatusOr<LeaseRevokeResponse>& response) {
                           if (ErrorOf(response.status()) != Error::kLeaseNotFound) {
                             gather->Note(response.status());
                           }
                         });
  }
}

void Sessions::Sweep() {
  const SteadyTime now = SteadyNow();
  MutexLock lock(&mu_);
  absl::erase_if(sessions_, [&](const auto& entry) {
    MutexLock session(&entry.second->mu);
    return entry.second->last_used + 2 * entry.second->ttl() < now && !entry.second->growing &&
           !entry.second->moving;
  });
}

}  // namespace etcd
}  // namespace failback
