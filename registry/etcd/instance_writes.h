// What one transaction writes for intents whose decision is made: each instance's key, the index of
// instances without a lease, the end of an operator's mark.
//
//   InstanceWrites writes(keys, session, retention, now_ms);
//   writes.Add(intent, key, known, verdict, lease);
//   for (each) writes.DropIndex(intent, known);  // while there is room
//   client->EncodedTxn(std::move(*writes.txn()).Take(), done);
//
// Thread safety: none; it asks nothing and keeps nothing beyond the transaction.

#ifndef FAILBACK_REGISTRY_ETCD_INSTANCE_WRITES_H_
#define FAILBACK_REGISTRY_ETCD_INSTANCE_WRITES_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "failback/etcd/v1/stored.pb.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/sessions.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn_encoder.h"
#include "registry/model/fencing.h"

namespace failback {
namespace etcd {

// An instance's key as it was read, or, until then, as it is taken to be: absent.
struct KnownKey {
  bool read = false;
  int64_t mod_revision = 0;
  int64_t lease = 0;
  StoredRecord current;
  int64_t mark_revision = 0;  // of the operator's mark, which goes with a deregistration
};

class InstanceWrites {
 public:
  // `session` null: the intents are detached. Both outlive this. `retention`: how long a fence is
  // kept without its instance.
  InstanceWrites(const Keys* keys, const Session* session, absl::Duration retention,
                 int64_t now_ms);

  // Whether a deregistration leaves a tombstone: it does where there is a fence to keep.
  static bool LeavesTombstone(const Session* session, const Intent& intent, const KnownKey& known);

  // `lease`: what the key is put on; 0: none.
  void Add(const Intent& intent, const std::string& key, const KnownKey& known,
           const Verdict& verdict, int64_t lease);
  // Takes what was without a lease, and is no longer, from the index. Not needed: an entry too many
  // does no harm.
  void DropIndex(const Intent& intent, const KnownKey& known);

  TxnEncoder* txn() { return &txn_; }

 private:
  // Whose index has the instance, before and after; empty: none.
  static std::string IndexBefore(const KnownKey& known);
  std::string IndexAfter(const Intent& intent) const;
  void SetFence(const Intent& intent, const KnownKey& known, const Verdict& verdict);
  void SetHistory(const Intent& intent, const KnownKey& known);
  void SetEnd();

  const Keys* const keys_;
  const Session* const session_;
  const uint32_t retention_ms_;
  const int64_t now_ms_;
  TxnEncoder txn_;
  // Set again for each intent.
  failback::etcd::v1::Meta meta_;
  std::string head_;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_INSTANCE_WRITES_H_
