// What is known of a service as the JSON door sends it, rendered once for all who get it.
//
// Thread safety: all functions from any thread.

#ifndef FAILBACK_GATEWAY_JSON_SERVICE_JSON_H_
#define FAILBACK_GATEWAY_JSON_SERVICE_JSON_H_

#include <cstdint>
#include <memory>
#include <string>

#include "gateway/catalog/view.h"

namespace failback {

// A service, or, with an empty name, the list of a namespace's services.
struct ServiceName {
  std::string name_space;
  std::string service;
};

// Which state a client has. The default: none.
struct StatePosition {
  uint64_t epoch = 0;
  uint64_t revision = 0;
  bool stale = false;
  bool held = false;

  bool SameSet(const StatePosition& other) const {
    return epoch == other.epoch && revision == other.revision;
  }
  friend bool operator==(const StatePosition& a, const StatePosition& b) {
    return a.SameSet(b) && a.stale == b.stale && a.held == b.held;
  }
};

// Of a view that is known, as are those below.
StatePosition PositionOf(const catalog::ServiceView& view);

// The Service, or the ServiceList of a namespace.
std::shared_ptr<const std::string> StateJson(const ServiceName& name,
                                             const catalog::ServiceView& view);

// What a client that has the state at `seen` is sent as the next event of its stream: a `delta`
// where the view is one change away, else a `snapshot`.
std::shared_ptr<const std::string> NextEvent(const ServiceName& name,
                                             const catalog::ServiceView& view,
                                             const StatePosition& seen);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_JSON_SERVICE_JSON_H_
