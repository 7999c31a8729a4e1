// How a session is opened: its incarnation's key says whether there is one to resume and which rank
// it has; a new one gets its leases, and then its key and the incarnation's in one transaction.
// A concurrent change of the incarnation makes it start over.

#include <algorithm>
#include <memory>
#include <utility>

#include "registry/base/proto_time.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/sessions.h"
#include "registry/etcd/txn.h"
#include "registry/model/errors.h"
#include "registry/model/fencing.h"
#include "registry/model/ids.h"

namespace failback {
namespace etcd {

namespace {

// A transaction has room for so many. What is on the others goes with them, within a TTL.
constexpr int64_t kMostLeft = 100;

}  // namespace

using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using failback::etcd::v1::IncarnationRecord;
using failback::etcd::v1::SessionRecord;

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
  // Of the session before, which has ended: the keys on leases that have not.
  google::protobuf::RepeatedPtrField<mvccpb::KeyValue> left;
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
  if (++opening->tries > kMaxTries) return opening->Fail(SessionContended());
  const std::string key = keys_->Incarnation(opening->request.incarnation());
  client_->Get(key, [this, opening](absl::StatusOr<RangeResponse> response) {
    if (!response.ok()) return opening->Fail(response.status());
    IncarnationRecord record;
    opening->incarnation_seen = 0;
    opening->before.Clear();
    opening->left.Clear();
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
  auto* const created = AddGet(keys_->Incarnations(), read.mutable_success());
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
  TxnRequest read;
  AddGet(keys_->Session(session_id), read.mutable_success());
  AddGet(keys_->LeasesOf(session_id), read.mutable_success())->set_limit(kMostLeft);
  client_->Txn(std::move(read), [this, opening, session_id](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return opening->Fail(response.status());
    const mvccpb::KeyValue* const kv = Found(*response, 0);
    opening->left.Swap(response->mutable_responses(1)->mutable_response_range()->mutable_kvs());
    if (kv == nullptr) {
      Forget(session_id);
      return GrantLeases(opening);
    }
    if (!MayResumeSession(session_id, opening->request.owner())) {
      return opening->Fail(SessionNotOwned());
    }
    Opened opened;
    opened.session = Adopt(session_id, *kv);
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
  const auto grant = [&](int64_t ttl_seconds, int64_t Opening::*lease) {
    client_->LeaseGrant(ttl_seconds, [opening, gather, lease](absl::StatusOr<int64_t> granted) {
      if (granted.ok()) opening.get()->*lease = *granted;
      gather->Note(granted.status());
    });
  };
  grant(LeaseSeconds(opening->ttl), &Opening::lease);
  grant(absl::ToInt64Seconds(kIncarnationMemory), &Opening::incarnation_lease);
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
  AddLease(session_id, session, opening->lease, &write);
  for (const mvccpb::KeyValue& kv : opening->left) {
    CompareCreated(kv.key(), kv.create_revision(), &write);
    AddLease(session_id, session, kv.lease(), &write);
  }
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
                 opened.session->SetCounted({opening->lease});
                 {
                   MutexLock lock(&opened.session->mu);
                   opened.session->incarnation_renewed = client_->Now();
                 }
                 Finish(opening.get(), std::move(opened));
               });
}

}  // namespace etcd
}  // namespace failback
