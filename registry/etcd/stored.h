// The value of an instance's key: what is kept beside the instance, then the instance.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_ETCD_STORED_H_
#define FAILBACK_REGISTRY_ETCD_STORED_H_

#include <string>
#include <string_view>

#include "etcd/kv.pb.h"
#include "failback/etcd/v1/stored.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/model/blob.h"
#include "registry/model/fencing.h"

namespace failback {
namespace etcd {

struct StoredRecord {
  failback::etcd::v1::Meta meta;
  Blob instance;  // canonical bytes; null for a tombstone, or for nothing

  Fence fence() const {
    return {meta.fence().rank(), meta.fence().generation(), meta.fence().digest(),
            meta.fence().registers()};
  }

  static void SetFence(const Fence& fence, failback::etcd::v1::Fence* message) {
    message->set_rank(fence.rank);
    message->set_generation(fence.generation);
    message->set_digest(fence.digest);
    message->set_registers(fence.registers);
  }
};

std::string EncodeStored(const StoredRecord& record);
// The same without the instance, which follows: takes the place of what `head` holds.
void EncodeMeta(const failback::etcd::v1::Meta& meta, std::string* head);

// What a key with canonical form `canonical` holds. A value that another program has put there
// counts as an instance without a fence if it is a ServiceInstance of that key, else as nothing; an
// instance with text that no client can read counts as nothing too.
StoredRecord DecodeStored(std::string_view canonical, const std::string& value);

// What the key of an operator's mark holds, as the bytes of an OfflineMark that every client can
// read.
Blob DecodeMark(const std::string& value);

// The line of a listing for a key that holds an instance. `mark` may be null.
registry::v1::InstanceRecord MakeRecord(const StoredRecord& record, const mvccpb::KeyValue& kv,
                                        const Blob& mark);

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_STORED_H_
