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
  etcdserverpb::LeaseGrantRequest grant;
  grant.set_ttl(LeaseSeconds(ttl));
  client_->LeaseGrant(
      std::move(grant), [this, session, ttl, tries, done = std::move(done)](
                            absl::StatusOr<etcdserverpb::LeaseGrantResponse> granted) mutable {
        if (!granted.ok()) return std::move(done)(granted.status());
        const std::string key = keys_->Session(session->id);
        const int64_t lease = granted->id();
        SessionRecord record;
        TxnRequest write;
        {
          MutexLock lock(&session->mu);
          record = RecordOf(*session);
          CompareModified(key, session->mod_revision, &write);
        }
        record.set_ttl_ms(absl::ToInt64Milliseconds(ttl));
        *record.mutable_retiring() = record.leases();
        record.clear_leases();
        record.add_leases(lease);
        record.mutable_leases()->MergeFrom(record.retiring());
        const std::string value = record.SerializeAsString();
        AddPut(key, value, lease, write.mutable_success());
        AddGet(key, write.mutable_failure());
        client_->Txn(
            std::move(write), [this, session, ttl, tries, lease, value, done = std::move(done)](
                                  absl::StatusOr<TxnResponse> response) mutable {
              // It may have been done all the same: then the next OpenSession finds it.
              if (!response.ok()) return std::move(done)(response.status());
              if (response->succeeded()) {
                AdoptWritten(*session, value, response->header().revision());
                {
                  MutexLock lock(&session->mu);
                  for (Session::Lease& entry : session->leases) {
                    // The session's own.
                    if (entry.id == lease && entry.keys == Session::kUncounted) entry.keys = 1;
                  }
                }
                MoveRetiring(session);
                return std::move(done)(absl::OkStatus());
              }
              const mvccpb::KeyValue* const kv = Found(*response, 0);
              if (kv == nullptr || kv->create_revision() != session->create_revision) {
                Revoke(lease);
                Forget(session->id);
                return std::move(done)(SessionUnknown());
              }
              Adopt(session->id, *kv);
              // Another server was faster, or this very write was, and its answer was lost.
              if (!session->Has(lease)) Revoke(lease);
              if (session->ttl() == ttl) {
                MoveRetiring(session);
                return std::move(done)(absl::OkStatus());
              }
              if (tries + 1 >= kMaxTries) {
                return std::move(done)(
                    absl::AbortedError("another server changes the same session all the time"));
              }
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
    for (const Session::Lease& lease : session->leases) {
      if (lease.retiring) move->leases.push_back(lease.id);
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
  const SteadyTime now = SteadyNow();
  if (now - move->renewed > kRenewInterval) {
    move->renewed = now;
    for (size_t i = move->next; i < move->leases.size(); ++i) {
      renewer_.Renew(move->leases[i], [](const absl::StatusOr<int64_t>&) {});
    }
  }
  if (move->next == move->leases.size()) return DropRetired(std::move(move));
  etcdserverpb::LeaseTimeToLiveRequest read;
  read.set_id(move->leases[move->next]);
  read.set_keys(true);
  client_->LeaseTimeToLive(
      std::move(read), [this, move](absl::StatusOr<etcdserverpb::LeaseTimeToLiveResponse> answer) {
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
    const mvccpb::KeyValue* const kv = Found(*response, 0);
    if (kv == nullptr || kv->create_revision() != move->session->create_revision) {
      EndMove(move);
      return Forget(move->session->id);
    }
    Adopt(move->session->id, *kv);
    MoveNext(move);
  });
}

// They are empty, and stay so.
void Sessions::DropRetired(std::shared_ptr<Move> move) {
  const SessionPtr& session = move->session;
  const std::string key = keys_->Session(session->id);
  const auto retired = [&](int64_t lease) {
    return std::find(move->leases.begin(), move->leases.end(), lease) != move->leases.end();
  };
  SessionRecord record;
  SessionRecord next;
  TxnRequest write;
  {
    MutexLock lock(&session->mu);
    record = RecordOf(*session);
    CompareModified(key, session->mod_revision, &write);
  }
  next = record;
  next.clear_leases();
  next.clear_retiring();
  for (const int64_t lease : record.leases()) {
    if (!retired(lease)) next.add_leases(lease);
  }
  for (const int64_t lease : record.retiring()) {
    if (!retired(lease)) next.add_retiring(lease);
  }
  // Another server was faster.
  if (next.leases_size() == record.leases_size() || next.leases_size() == 0) return EndMove(move);
  const std::string value = next.SerializeAsString();
  AddPut(key, value, next.leases(0), write.mutable_success());
  AddGet(key, write.mutable_failure());
  client_->Txn(std::move(write), [this, move, value](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return EndMove(move);
    const SessionPtr& session = move->session;
    if (response->succeeded()) {
      AdoptWritten(*session, value, response->header().revision());
      for (const int64_t lease : move->leases) Revoke(lease);
      EndMove(move);
      return MoveRetiring(session);  // what has been retired meanwhile
    }
    const mvccpb::KeyValue* const kv = Found(*response, 0);
    const bool there = kv != nullptr && kv->create_revision() == session->create_revision;
    if (there) Adopt(session->id, *kv);
    if (!there || ++move->tries >= kMaxTries) return EndMove(move);
    DropRetired(move);
  });
}

}  // namespace etcd
}  // namespace failback
