// How a session that is resumed gets another TTL.
//
// A lease has the TTL that it was granted with. So the session's key is put on a new lease of the
// new TTL, and names its other leases as retiring: nothing is put on them any more, as every write
// of the session compares on which lease the session's key is. What is on them is moved in the
// background, a transaction at a time, by the server that was asked and by each that renews the
// session; then they are revoked. Whatever fails on the way is gone on with at the next renewal.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "registry/base/steady_time.h"
#include "registry/etcd/error.h"
#include "registry/etcd/sessions.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/model/errors.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using failback::etcd::v1::SessionRecord;

// In one transaction.
constexpr size_t kKeysAtOnce = 100;
constexpr size_t kBytesAtOnce = 1 << 20;
// Leases that retire live until they are empty, however short their TTL.
constexpr absl::Duration kRenewInterval = absl::Milliseconds(500);

}  // namespace

void Sessions::Retime(const SessionPtr& session, absl::Duration ttl, int tries,
                      absl::AnyInvocable<void(absl::Status) &&> done) {
  client_->LeaseGrant(LeaseSeconds(ttl), [this, session, ttl, tries, done = std::move(done)](
                                             absl::StatusOr<int64_t> granted) mutable {
    if (!granted.ok()) return std::move(done)(granted.status());
    const int64_t lease = *granted;
    const auto retire = [&](SessionRecord* record) {
      record->set_ttl_ms(absl::ToInt64Milliseconds(ttl));
      *record->mutable_retiring() = record->leases();
      record->clear_leases();
      record->add_leases(lease);
      record->mutable_leases()->MergeFrom(record->retiring());
    };
    Update(session, retire,
           [this, session, ttl, tries, lease,
            done = std::move(done)](absl::StatusOr<bool> written) mutable {
             if (!written.ok()) {
               // It may have been done all the same: then the next OpenSession finds it.
               if (ReasonOf(written.status()) == registry::v1::ERROR_REASON_SESSION_UNKNOWN) {
                 Revoke(lease);
               }
               return std::move(done)(written.status());
             }
             if (*written) {
               session->SetCounted({lease});
             } else if (!session->Has(lease)) {
               // Another server was faster; or this very write was, and its answer was lost.
               Revoke(lease);
             }
             if (*written || session->ttl() == ttl) {
               MoveRetiring(session);
               return std::move(done)(absl::OkStatus());
             }
             if (tries + 1 >= kMaxTries) return std::move(done)(SessionContended());
             Retime(session, ttl, tries + 1, std::move(done));
           });
  });
}

// What is under way. One step follows the other.
struct Sessions::Move {
  SessionPtr session;
  std::vector<int64_t> leases;  // that retire
  size_t next = 0;              // those before are empty
  SteadyTime renewed = SteadyPast();
  int tries = 0;
};

void Sessions::MoveRetiring(SessionPtr session) {
  auto move = std::make_shared<Move>();
  {
    MutexLock lock(&session->mu);
    // The first has the session's key, and stays.
    for (size_t i = 1; i < session->leases.size(); ++i) {
      if (session->leases[i].retiring) move->leases.push_back(session->leases[i].id);
    }
    if (move->leases.empty() || session->moving) return;
    session->moving = true;
  }
  move->session = std::move(session);
  MoveNext(std::move(move));
}

void Sessions::EndMove(const std::shared_ptr<Move>& move) {
  MutexLock lock(&move->session->mu);
  move->session->moving = false;
}

void Sessions::MoveNext(std::shared_ptr<Move> move) {
  if (client_->closed()) return EndMove(move);
  const SteadyTime now = client_->Now();
  if (now - move->renewed > kRenewInterval) {
    move->renewed = now;
    for (size_t i = move->next; i < move->leases.size(); ++i) {
      renewer_.Renew(move->leases[i], [](const absl::StatusOr<int64_t>&) {});
    }
  }
  if (move->next == move->leases.size()) return DropRetired(std::move(move));
  client_->LeaseTimeToLive(
      move->leases[move->next], /*keys=*/true,
      [this, move](absl::StatusOr<etcdserverpb::LeaseTimeToLiveResponse> answer) {
        if (!answer.ok()) return EndMove(move);
        std::vector<std::string> keys;
        const size_t most = std::min(kKeysAtOnce, static_cast<size_t>(options_.keys_per_lease));
        for (const std::string& key : answer->keys()) {
          if (keys.size() < most && keys_->ParseInstance(key).has_value()) {
            keys.push_back(key);
          }
        }
        if (!keys.empty()) return ReadToMove(move, std::move(keys));
        ++move->next;
        MoveNext(move);
      });
}

void Sessions::ReadToMove(const std::shared_ptr<Move>& move, std::vector<std::string> keys) {
  TxnRequest read;
  for (std::string& key : keys) AddGet(std::move(key), read.mutable_success());
  client_->Txn(std::move(read), [this, move](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return EndMove(move);
    std::vector<mvccpb::KeyValue> moved;
    size_t bytes = 0;
    for (auto& part : *response->mutable_responses()) {
      for (mvccpb::KeyValue& kv : *part.mutable_response_range()->mutable_kvs()) {
        const size_t size = kv.key().size() + kv.value().size();
        if (kv.lease() != move->leases[move->next]) continue;
        if (!moved.empty() && bytes + size > kBytesAtOnce) continue;
        bytes += size;
        moved.push_back(std::move(kv));
      }
    }
    if (moved.empty()) return MoveNext(move);
    const auto count = static_cast<int64_t>(moved.size());
    TakeRoom(move->session, count,
             [this, move, moved = std::move(moved)](absl::StatusOr<int64_t> lease) mutable {
               if (!lease.ok()) return EndMove(move);
               WriteMoved(move, std::move(moved), *lease);
             });
  });
}

void Sessions::WriteMoved(std::shared_ptr<Move> move, std::vector<mvccpb::KeyValue> moved,
                          int64_t lease) {
  const SessionPtr& session = move->session;
  const std::string session_key = keys_->Session(session->id);
  TxnRequest write;
  CompareCreated(session_key, session->create_revision, &write);
  // A lease that retires by now takes nothing.
  CompareLease(session_key, session->KeyLease(), &write);
  AddGet(session_key, write.mutable_failure());
  for (mvccpb::KeyValue& kv : moved) {
    CompareModified(kv.key(), kv.mod_revision(), &write);
    StoredRecord record = DecodeStored(keys_->ParseInstance(kv.key()).value_or(""), kv.value());
    if (record.meta.has_fence() && record.meta.create_revision() == 0) {
      record.meta.set_create_revision(kv.mod_revision());
      kv.set_value(EncodeStored(record));
    }
    AddPut(std::move(*kv.mutable_key()), std::move(*kv.mutable_value()), lease,
           write.mutable_success());
  }
  const auto count = static_cast<int64_t>(moved.size());
  const bool keeps = session->Keeps(lease);
  if (!keeps) return MoveNext(std::move(move));
  client_->Txn(std::move(write), [this, move, lease, count](absl::StatusOr<TxnResponse> response) {
    if (response.ok() && response->succeeded()) {
      move->tries = 0;
      return MoveNext(move);
    }
    GiveRoom(move->session, lease, count);
    if (!response.ok() || ++move->tries >= kMaxTries) return EndMove(move);
    if (!Refresh(*move->session, Found(*response, 0))) return EndMove(move);
    MoveNext(move);
  });
}

// They are empty, and stay so.
void Sessions::DropRetired(std::shared_ptr<Move> move) {
  const SessionPtr& session = move->session;
  const bool there = std::any_of(move->leases.begin(), move->leases.end(),
                                 [&](int64_t lease) { return session->Has(lease); });
  if (!there) return EndMove(move);  // another server was faster
  const auto drop = [&](SessionRecord* record) {
    for (auto* leases : {record->mutable_leases(), record->mutable_retiring()}) {
      leases->erase(std::remove_if(leases->begin(), leases->end(),
                                   [&](int64_t lease) {
                                     return std::find(move->leases.begin(), move->leases.end(),
                                                      lease) != move->leases.end();
                                   }),
                    leases->end());
    }
  };
  Update(session, drop, [this, move](absl::StatusOr<bool> written) {
    if (!written.ok()) return EndMove(move);
    if (*written) {
      for (const int64_t lease : move->leases) Revoke(lease);
      EndMove(move);
      return MoveRetiring(move->session);  // what has been retired meanwhile
    }
    if (++move->tries >= kMaxTries) return EndMove(move);
    DropRetired(move);
  });
}

}  // namespace etcd
}  // namespace failback
