// A client that follows a service through a stream of events (Server-Sent Events).
//
// It gets a snapshot, or, where it resumes from the state that is known, nothing; then a delta for
// each change. One that does not read gets no more until it has: then a snapshot of the newest state
// in place of what it missed. When nothing was sent for a while, a comment. When the policy no
// longer lets its caller read, the stream ends.
//
// Thread safety: StartFollower from any thread.

#ifndef FAILBACK_GATEWAY_JSON_FOLLOWER_H_
#define FAILBACK_GATEWAY_JSON_FOLLOWER_H_

#include <memory>
#include <optional>

#include "gateway/http/responder.h"
#include "gateway/json/json_door.h"
#include "gateway/json/service_json.h"
#include "registry/security/identity.h"

namespace failback {

void StartFollower(std::shared_ptr<const JsonDoor::Sources> sources, const ServiceName& name,
                   const Identity& caller, const std::optional<StatePosition>& from,
                   http::Responder responder);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_JSON_FOLLOWER_H_
