#include "registry/etcd/fences.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "failback/etcd/v1/stored.pb.h"
#include "registry/etcd/error.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/model/fencing.h"

namespace failback {
namespace etcd {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using failback::etcd::v1::IncarnationRecord;

namespace {

// How often a batch is written again without what is there by then.
constexpr int kMaxTries = 4;

}  // namespace

struct Fences::Item {
  Gone gone;
  StoredRecord record;  // as it was; then the tombstone
  int64_t lease = 0;    // that it was on
};

struct Fences::Batch {
  std::vector<std::string> all;  // canonical, as taken
  std::vector<Item> items;       // that are to be fenced
  int tries = 0;

  template <typename Unwanted>
  void Drop(Unwanted unwanted) {
    items.erase(std::remove_if(items.begin(), items.end(), unwanted), items.end());
  }
};

void Fences::Add(std::vector<Gone> gone) {
  if (gone.empty()) return;
  {
    MutexLock lock(&mu_);
    const SteadyTime until = client_->Now() + kMinFenceRetention;
    for (Gone& item : gone) {
      if (waiting_.size() >= kMaxWaiting) continue;
      Pending& pending = pending_[item.canonical];
      pending.rank = std::max(pending.rank, item.rank);
      waiting_.push_back({std::move(item), until});
    }
    if (std::exchange(busy_, true)) return;
  }
  Next();
}

bool Fences::Await(const std::string& canonical, uint64_t rank,
                   absl::AnyInvocable<void() &&> over) {
  MutexLock lock(&mu_);
  const auto it = pending_.find(canonical);
  if (it == pending_.end() || it->second.rank <= rank) return false;
  it->second.waiting.push_back(std::move(over));
  return true;
}

void Fences::Next() {
  auto batch = std::make_shared<Batch>();
  {
    MutexLock lock(&mu_);
    const SteadyTime now = client_->Now();
    absl::btree_set<std::string> taken;
    while (!waiting_.empty() && batch->items.size() < kBatch) {
      Waiting& next = waiting_.front();
      // A transaction has a key once.
      if (!taken.insert(next.gone.canonical).second) break;
      batch->all.push_back(next.gone.canonical);
      if (next.until >= now) batch->items.push_back({std::move(next.gone), {}, 0});
      waiting_.pop_front();
    }
    if (batch->all.empty()) {
      busy_ = false;
      return;
    }
  }
  if (batch->items.empty()) return Finish(batch);
  ReadBefore(batch);
}

// Each as it was before it was deleted.
void Fences::ReadBefore(const std::shared_ptr<Batch>& batch) {
  TxnRequest read;
  for (const Item& item : batch->items) {
    auto* get = read.mutable_success()->Add()->mutable_request_range();
    get->set_key(keys_->Instance(item.gone.canonical));
    get->set_revision(item.gone.revision - 1);
  }
  client_->Txn(std::move(read), [this, batch](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return Finish(batch);
    int place = 0;
    for (Item& item : batch->items) {
      const mvccpb::KeyValue* const kv = Found(*response, place++);
      if (kv == nullptr) continue;
      item.record = DecodeStored(item.gone.canonical, kv->value());
      item.lease = kv->lease();
    }
    batch->Drop(
        [](const Item& item) { return !item.record.instance || item.record.fence().rank == 0; });
    if (batch->items.empty()) return Finish(batch);
    ReadOwners(batch);
  });
}

// Whose session was closed has left on purpose.
void Fences::ReadOwners(const std::shared_ptr<Batch>& batch) {
  absl::btree_map<std::string, int> owners;
  for (const Item& item : batch->items) owners.emplace(item.record.meta.owner(), 0);
  TxnRequest read;
  int last = 0;
  for (auto& [owner, place] : owners) {
    place = last++;
    AddGet(keys_->Incarnation(owner), read.mutable_success());
  }
  client_->Txn(std::move(read), [this, batch, owners](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) return Finish(batch);
    std::vector<IncarnationRecord> records(owners.size());
    for (size_t i = 0; i < records.size(); ++i) {
      const mvccpb::KeyValue* const kv = Found(*response, static_cast<int>(i));
      if (kv != nullptr) records[i].ParseFromString(kv->value());
    }
    batch->Drop([&](const Item& item) {
      const auto& closed =
          records[static_cast<size_t>(owners.at(item.record.meta.owner()))].closed_leases();
      return std::find(closed.begin(), closed.end(), item.lease) != closed.end();
    });
    if (batch->items.empty()) return Finish(batch);
    TakeLease(batch);
  });
}

void Fences::TakeLease(const std::shared_ptr<Batch>& batch) {
  absl::Duration retention = kMinFenceRetention;
  for (const Item& item : batch->items) {
    retention = std::max(retention, absl::Milliseconds(item.record.meta.retention_ms()));
  }
  leases_.Take(retention, static_cast<int64_t>(batch->items.size()),
               [this, batch](absl::StatusOr<int64_t> lease) {
                 if (!lease.ok()) return Finish(batch);
                 Write(batch, *lease);
               });
}

void Fences::Write(const std::shared_ptr<Batch>& batch, int64_t lease) {
  TxnRequest write;
  for (const Item& item : batch->items) {
    StoredRecord tombstone;
    *tombstone.meta.mutable_fence() = item.record.meta.fence();
    tombstone.meta.set_retention_ms(item.record.meta.retention_ms());
    const std::string key = keys_->Instance(item.gone.canonical);
    CompareCreated(key, 0, &write);
    AddPut(key, EncodeStored(tombstone), lease, write.mutable_success());
    AddGet(key, write.mutable_failure())->set_keys_only(true);
  }
  client_->Txn(std::move(write), [this, batch, lease](absl::StatusOr<TxnResponse> response) {
    if (ErrorOf(response.status()) == Error::kLeaseNotFound && ++batch->tries < kMaxTries) {
      leases_.Drop(lease);
      return TakeLease(batch);
    }
    if (!response.ok()) return Finish(batch);
    if (!response->succeeded() && ++batch->tries < kMaxTries) {
      int place = 0;
      batch->Drop([&](const Item&) { return Found(*response, place++) != nullptr; });
      if (!batch->items.empty()) return Write(batch, lease);
    }
    Finish(batch);
  });
}

void Fences::Finish(const std::shared_ptr<Batch>& batch) {
  std::vector<absl::AnyInvocable<void() &&>> over;
  {
    MutexLock lock(&mu_);
    for (const std::string& canonical : batch->all) {
      const auto it = pending_.find(canonical);
      if (it == pending_.end()) continue;
      for (auto& task : it->second.waiting) over.push_back(std::move(task));
      pending_.erase(it);
    }
    if (client_->closed()) {
      waiting_.clear();
      for (auto& [canonical, pending] : pending_) {
        for (auto& task : pending.waiting) over.push_back(std::move(task));
      }
      pending_.clear();
    }
  }
  for (auto& task : over) std::move(task)();
  Next();
}

}  // namespace etcd
}  // namespace failback
