// A state of a service as the JSON door sends it, rendered once for all who get it.
//
// Thread safety: all functions from any thread.

#ifndef FAILBACK_GATEWAY_JSON_SERVICE_JSON_H_
#define FAILBACK_GATEWAY_JSON_SERVICE_JSON_H_

#include <memory>
#include <string>

#include "gateway/door/service_feed.h"

namespace failback {

// The Service, or the ServiceList of a namespace.
std::shared_ptr<const std::string> StateJson(const ServiceState& state);

// The same as an event of a stream: `snapshot`.
std::shared_ptr<const std::string> SnapshotEvent(const ServiceState& state);

// What changed since state.previous(), as an event: `delta`.
std::shared_ptr<const std::string> DeltaEvent(const ServiceState& state);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_JSON_SERVICE_JSON_H_
