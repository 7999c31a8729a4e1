// Builds transactions.

#ifndef FAILBACK_REGISTRY_ETCD_TXN_H_
#define FAILBACK_REGISTRY_ETCD_TXN_H_

#include <cstdint>
#include <string>
#include <utility>

#include "etcd/rpc.pb.h"
#include "registry/etcd/keys.h"

namespace failback {
namespace etcd {

using Operations = google::protobuf::RepeatedPtrField<etcdserverpb::RequestOp>;

// What was added, to ask for less.
inline etcdserverpb::RangeRequest* AddGet(std::string key, Operations* operations) {
  auto* const get = operations->Add()->mutable_request_range();
  get->set_key(std::move(key));
  return get;
}

inline etcdserverpb::RangeRequest* AddGet(KeyRange range, Operations* operations) {
  auto* const get = AddGet(std::move(range.begin), operations);
  get->set_range_end(std::move(range.end));
  return get;
}

inline void AddCount(KeyRange range, Operations* operations) {
  AddGet(std::move(range), operations)->set_count_only(true);
}

inline void AddPut(std::string key, std::string value, int64_t lease, Operations* operations) {
  auto* put = operations->Add()->mutable_request_put();
  put->set_key(std::move(key));
  put->set_value(std::move(value));
  put->set_lease(lease);
}

inline void AddDelete(std::string key, Operations* operations) {
  operations->Add()->mutable_request_delete_range()->set_key(std::move(key));
}

// `key` was last changed at `revision`; 0: it is not there.
inline void CompareModified(std::string key, int64_t revision, etcdserverpb::TxnRequest* txn) {
  auto* compare = txn->add_compare();
  compare->set_target(etcdserverpb::Compare::MOD);
  compare->set_key(std::move(key));
  compare->set_mod_revision(revision);
}

// `key` has been there since `revision`.
inline void CompareCreated(std::string key, int64_t revision, etcdserverpb::TxnRequest* txn) {
  auto* compare = txn->add_compare();
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(std::move(key));
  compare->set_create_revision(revision);
}

// `key` is there, on that lease.
inline void CompareLease(std::string key, int64_t lease, etcdserverpb::TxnRequest* txn) {
  auto* compare = txn->add_compare();
  compare->set_target(etcdserverpb::Compare::LEASE);
  compare->set_key(std::move(key));
  compare->set_lease(lease);
}

// What the get at `index` of the branch taken has found first, or null.
inline const mvccpb::KeyValue* Found(const etcdserverpb::TxnResponse& response, int index) {
  if (index >= response.responses_size()) return nullptr;
  const auto& range = response.responses(index).response_range();
  return range.kvs_size() == 0 ? nullptr : &range.kvs(0);
}

// The same, of one of the keys that it has got.
inline const mvccpb::KeyValue* Found(const etcdserverpb::TxnResponse& response, int index,
                                     const std::string& key) {
  if (index >= response.responses_size()) return nullptr;
  for (const mvccpb::KeyValue& kv : response.responses(index).response_range().kvs()) {
    if (kv.key() == key) return &kv;
  }
  return nullptr;
}

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_TXN_H_
