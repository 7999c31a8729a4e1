// An operator's mark on an instance, which a store keeps apart from it (docs/protocol.md).
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_OFFLINE_MARK_H_
#define FAILBACK_REGISTRY_MODEL_OFFLINE_MARK_H_

#include "registry/model/blob.h"

namespace failback {

// The instance as it is listed and sent to subscribers: `instance`, canonical bytes, with `mark`, a
// serialized OfflineMark. Either may be null: the instance alone, or null.
Blob WithMark(const Blob& instance, const Blob& mark);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_OFFLINE_MARK_H_
