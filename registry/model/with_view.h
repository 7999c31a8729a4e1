// Reads the fields of an instance where its bytes are, whichever client wrote them.
//
// Example:
//
//   set.ForEach([](const Blob& instance) {
//     WithView(instance, [](const InstanceView& view) { Show(view.address, view.port); });
//   });
//
// Thread safety: pure.

#ifndef FAILBACK_REGISTRY_MODEL_WITH_VIEW_H_
#define FAILBACK_REGISTRY_MODEL_WITH_VIEW_H_

#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/instance_view.h"

namespace failback {

// Calls `use` with a view of what a set has; it is valid until that returns.
template <typename Use>
void WithView(const Blob& instance, Use use) {
  EncodedInstance encoded;
  if (ReadSentInstance(instance.view(), &encoded)) return use(encoded.view);
  // Not as serializers write it, or with fields of a later version.
  const registry::v1::ServiceInstance message = ParseInstance(instance);
  use(InstanceView(message));
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_WITH_VIEW_H_
