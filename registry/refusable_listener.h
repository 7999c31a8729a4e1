// A listener that says whether its subscription ends when the registry refuses it for good.
//
// A FailbackRegistry parks such a subscription, and its subscribers go on with what was known last:
// it is an intent, which waits for an operator. Who only looks, as DNS does on behalf of its
// clients, wants the refusal instead, as a registry without failback gives it.
//
//   if (EndsWhenRefused(listener.get())) …
//
// Thread safety: the answer never changes.

#ifndef FAILBACK_REGISTRY_REFUSABLE_LISTENER_H_
#define FAILBACK_REGISTRY_REFUSABLE_LISTENER_H_

#include "registry/registry.h"

namespace failback {

// Beside NotifyListener. A layer that wraps a listener answers as that does.
class RefusableListener {
 public:
  virtual ~RefusableListener() = default;
  virtual bool ends_when_refused() const = 0;
};

inline bool EndsWhenRefused(const NotifyListener* listener) {
  const auto* const refusable = dynamic_cast<const RefusableListener*>(listener);
  return refusable != nullptr && refusable->ends_when_refused();
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_REFUSABLE_LISTENER_H_
