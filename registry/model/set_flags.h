// What a subscriber receives about a set beside its instances.
//
// Thread safety: values.

#ifndef FAILBACK_REGISTRY_MODEL_SET_FLAGS_H_
#define FAILBACK_REGISTRY_MODEL_SET_FLAGS_H_

#include "failback/registry/v1/registry.pb.h"

namespace failback {

struct SetFlags {
  bool stale = false;  // the last known: the registry is unavailable
  bool held = false;   // sessions of some of the instances are held by the eviction guard

  static SetFlags Of(const registry::v1::SubscribeResponse& message) {
    return {message.stale(), message.held()};
  }
  void Put(registry::v1::SubscribeResponse* message) const {
    message->set_stale(stale);
    message->set_held(held);
  }
  friend bool operator==(const SetFlags& a, const SetFlags& b) {
    return a.stale == b.stale && a.held == b.held;
  }
  friend bool operator!=(const SetFlags& a, const SetFlags& b) { return !(a == b); }
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_SET_FLAGS_H_
