// Which store this is, and which life of it: store_id and epoch of docs/protocol.md.
//
// The store id is minted once, under `.store`. The epoch is a digest of etcd's cluster id, the
// store id and the value of `.epoch`, so that it changes when the cluster is created again, or when
// someone writes `.epoch`: an operator after a restore, or the client that sees revisions go back.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_IDENTITY_H_
#define FAILBACK_REGISTRY_ETCD_IDENTITY_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "registry/etcd/client.h"
#include "registry/etcd/keys.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

struct Store {
  std::string store_id;
  uint64_t epoch = 0;  // 0: not known yet

  bool known() const { return epoch != 0; }
};

class Identity {
 public:
  // How many gets AddTo adds.
  static constexpr int kGets = 2;

  // `on_change` runs when a known epoch becomes another. Client and keys outlive this.
  Identity(Client* client, const Keys* keys, std::function<void(Store)> on_change)
      : client_(client), keys_(keys), on_change_(std::move(on_change)) {}

  Store Get() const;

  // Has the first gets of a transaction read the identity, and takes what they have read.
  void AddTo(etcdserverpb::TxnRequest* read) const;
  Store Take(const etcdserverpb::TxnResponse& response);

  // Reads the identity, mints it if this store has none.
  void Ensure(Client::Done<Store> done);

  // Begins a new epoch.
  void BeginEpoch();

 private:
  void Mint(Client::Done<Store> done);

  Client* const client_;
  const Keys* const keys_;
  const std::function<void(Store)> on_change_;
  mutable Mutex mu_;
  Store current_ ABSL_GUARDED_BY(mu_);
  int64_t revision_ ABSL_GUARDED_BY(mu_) = 0;  // of the answer that had it
  uint64_t cluster_id_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_IDENTITY_H_
