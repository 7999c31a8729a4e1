// Writes a transaction of puts straight in its wire format: one string, in place of some seven
// hundred small objects for a hundred puts. For the transactions that carry registrations;
// the others are built as messages (registry/etcd/txn.h).
//
//   TxnEncoder txn;
//   txn.Reserve(bytes);
//   txn.CompareModified(key, 0);
//   txn.Put(key, meta, instance, lease);
//   client.Txn(std::move(txn).Take(), done);
//
// Repeated fields may be interleaved on the wire; each keeps its own order
// (https://protobuf.dev/programming-guides/encoding/).
//
// Thread safety: none.

#ifndef FAILBACK_REGISTRY_ETCD_TXN_ENCODER_H_
#define FAILBACK_REGISTRY_ETCD_TXN_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace failback {
namespace etcd {

class TxnEncoder {
 public:
  // Room for about so many bytes: what is written within it is not moved again.
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }

  // Conditions: `key` was last changed at `revision` (0: it is not there); `key` has been there
  // since `revision`; it is on `lease`.
  void CompareModified(std::string_view key, int64_t revision);
  void CompareCreated(std::string_view key, int64_t revision);
  void CompareLease(std::string_view key, int64_t lease);

  // Done when all conditions hold. The value put is `head`, then `rest`.
  void Put(std::string_view key, std::string_view head, std::string_view rest, int64_t lease);
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
