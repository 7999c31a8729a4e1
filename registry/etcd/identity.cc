#include "registry/etcd/identity.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/etcd/txn.h"
#include "registry/model/canonical.h"
#include "registry/model/ids.h"

namespace failback {
namespace etcd {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

namespace {
constexpr absl::Duration kBeginAgain = absl::Seconds(1);
}  // namespace

Store Identity::Get() const {
  MutexLock lock(&mu_);
  return current_;
}

void Identity::AddTo(TxnRequest* read) const {
  AddGet(keys_->StoreId(), read->mutable_success());
  AddGet(keys_->Epoch(), read->mutable_success());
}

Store Identity::Take(const TxnResponse& response) {
  const mvccpb::KeyValue* const store = Found(response, 0);
  if (store == nullptr) return Store();
  const mvccpb::KeyValue* const epoch = Found(response, 1);
  Store identity;
  identity.store_id = store->value();
  identity.epoch = std::max<uint64_t>(
      1, Digest64(absl::StrCat(response.header().cluster_id(), "\n", store->value(), "\n",
                               epoch == nullptr ? "" : epoch->value())));
  bool changed = false;
  {
    MutexLock lock(&mu_);
    const uint64_t cluster_id = response.header().cluster_id();
    const int64_t revision = response.header().revision();
    // Answers overtake each other.
    if (cluster_id == cluster_id_ && revision < revision_ &&
        current_.store_id == identity.store_id && current_.known()) {
      return current_;
    }
    changed = current_.known() && current_.epoch != identity.epoch;
    current_ = identity;
    cluster_id_ = cluster_id;
    revision_ = revision;
  }
  if (changed) {
    Log(LogLevel::kWarning, "etcd has begun a new epoch",
        {{"store_id", identity.store_id}, {"epoch", absl::StrCat(identity.epoch)}});
    on_change_(identity);
  }
  return identity;
}

void Identity::Ensure(Client::Done<Store> done) {
  TxnRequest read;
  AddTo(&read);
  client_->Txn(std::move(read),
               [this, done = std::move(done)](absl::StatusOr<TxnResponse> response) mutable {
                 if (!response.ok()) return std::move(done)(response.status());
                 Store identity = Take(*response);
                 if (identity.known()) return std::move(done)(std::move(identity));
                 Mint(std::move(done));
               });
}

void Identity::Mint(Client::Done<Store> done) {
  TxnRequest write;
  CompareModified(keys_->StoreId(), 0, &write);
  AddPut(keys_->StoreId(), RandomId(), 0, write.mutable_success());
  client_->Txn(std::move(write),
               [this, done = std::move(done)](const absl::StatusOr<TxnResponse>& response) mutable {
                 if (!response.ok()) return std::move(done)(response.status());
                 // Another server was first: read what is there now.
                 Ensure(std::move(done));
               });
}

void Identity::BeginEpoch() {
  {
    MutexLock lock(&mu_);
    revision_ = 0;
  }
  TxnRequest read;
  AddTo(&read);
  client_->Txn(std::move(read), [this](absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) {
      if (!client_->closed()) client_->After(kBeginAgain, [this] { BeginEpoch(); });
      return;
    }
    const mvccpb::KeyValue* const epoch = Found(*response, 1);
    TxnRequest write;
    CompareModified(keys_->Epoch(), epoch == nullptr ? 0 : epoch->mod_revision(), &write);
    AddPut(keys_->Epoch(), RandomId(), 0, write.mutable_success());
    client_->Txn(std::move(write), [this](const absl::StatusOr<TxnResponse>& written) {
      // Another may have been first; read what holds now.
      if (written.ok()) Ensure([](const absl::StatusOr<Store>&) {});
    });
  });
}

}  // namespace etcd
}  // namespace failback
