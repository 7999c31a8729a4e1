// Writes a transaction of puts straight in its wire format: one string that grows, in place of some
// seven hundred small objects for a hundred puts. For the transactions that carry registrations;
// the others are built as messages (registry/etcd/txn.h).
//
//   TxnEncoder txn;
//   txn.CompareModified(key, 0);
//   txn.Put(key, value, lease);
//   client.Txn(std::move(txn).Take(), done);
//
// Repeated fields may be interleaved on the wire; each keeps its own order
// (https://protobuf.dev/programming-guides/encoding/).
//
// Thread safety: none.

#ifndef FAILBACK_REGISTRY_ETCD_TXN_ENCODER_H_
#define FAILBACK_REGISTRY_ETCD_TXN_ENCODER_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace failback {
namespace etcd {

class TxnEncoder {
 public:
  // Conditions: `key` was last changed at `revision` (0: it is not there); `key` has been there
  // since `revision`; it is on `lease`.
  void CompareModified(std::string_view key, int64_t revision);
  void CompareCreated(std::string_view key, int64_t revision);
  void CompareLease(std::string_view key, int64_t lease);

  // Done when all conditions hold.
  void Put(std::string_view key, std::string_view value, int64_t lease);
  void Delete(std::string_view key);
  // What has been put and deleted so far.
  int operations() const { return operations_; }

  // Done when one does not.
  void GetElse(std::string_view key);

  // A serialized etcdserverpb::TxnRequest. Leaves nothing.
  std::string Take() &&;

 private:
  void Compare(std::string_view key, int target, int field, int64_t revision);

  std::string bytes_;
  int operations_ = 0;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_TXN_ENCODER_H_
