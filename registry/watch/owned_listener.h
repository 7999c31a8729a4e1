// A listener that says for whom it listens, for the shares of owners
// (registry/model/shared_limit.h).
//
// `Registry` knows no callers. A layer that distinguishes them wraps what a caller listens with,
// and who has bounds that callers share asks.
//
//   const std::string owner = OwnerOf(listener.get());   // empty: no owner
//
// Thread safety: the owner never changes.

#ifndef FAILBACK_REGISTRY_WATCH_OWNED_LISTENER_H_
#define FAILBACK_REGISTRY_WATCH_OWNED_LISTENER_H_

#include <string>

#include "registry/registry.h"

namespace failback {

class OwnedListener : public NotifyListener {
 public:
  // The caller, as in the ids of its sessions; empty: callers are not distinguished.
  virtual const std::string& owner() const = 0;
};

inline std::string OwnerOf(const NotifyListener* listener) {
  const auto* const owned = dynamic_cast<const OwnedListener*>(listener);
  return owned == nullptr ? std::string() : owned->owner();
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_OWNED_LISTENER_H_
