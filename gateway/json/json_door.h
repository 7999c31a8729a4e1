// The front door over HTTP and JSON: the registry for curl, a browser, a script. docs/gateway.md
// has the paths; a body is a ServiceInstance in protobuf's JSON.
//
// Reads are answered from a Catalog, so that a client that polls, waits or follows costs the
// registry nothing; what they get is rendered once for all. Writes go through an InstanceWriter.
// Each caller may do what the policy allows.
//
// Example:
//
//   JsonDoor::Sources sources{&registry, catalog, &writer, &timer};
//   JsonDoor door(sources);
//   door.AddTo(server.get());
//
// Thread safety: AddTo before the server starts. The door outlives the server.

#ifndef FAILBACK_GATEWAY_JSON_JSON_DOOR_H_
#define FAILBACK_GATEWAY_JSON_JSON_DOOR_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "failback/agent/v1/agent.pb.h"
#include "gateway/catalog/catalog.h"
#include "gateway/door/instance_writer.h"
#include "gateway/http/server.h"
#include "registry/registry.h"
#include "registry/security/access_control.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class JsonDoor {
 public:
  struct Sources {
    // All outlive the door.
    Registry* registry = nullptr;
    std::shared_ptr<catalog::Catalog> catalog;
    InstanceWriter* writer = nullptr;
    HashedWheelTimer* timer = nullptr;
    // Null: callers are not distinguished.
    std::shared_ptr<AccessControl> access = nullptr;
    // An agent's, for callers who may administer. Null: a registry owes nothing.
    std::function<absl::StatusOr<agent::v1::ListPendingResponse>(
        const agent::v1::ListPendingRequest&)>
        pending = nullptr;
    std::function<void(const agent::v1::RetryRequest&, Callback<agent::v1::RetryResponse>)> retry =
        nullptr;
    // Of a stream, when nothing else was sent for so long.
    absl::Duration heartbeat = absl::Seconds(15);
    // How long the first question about a service waits for the registry.
    absl::Duration first_wait = absl::Seconds(5);
  };

  explicit JsonDoor(Sources sources);

  void AddTo(http::Server* server);

 private:
  const std::shared_ptr<const Sources> sources_;
};

}  // namespace failback

#endif  // FAILBACK_GATEWAY_JSON_JSON_DOOR_H_
