// How the front doors over HTTP register instances: with liveness for clients that have no session.
//
// An instance that is put with a TTL lives in a session of its own, which each further Put and each
// Renew renews. The session's incarnation is made of the door and the key ("consul:default/orders/1"),
// and the caller owns the session: so fencing, expiry, limits and failback hold as for every other
// client. Without a TTL an instance is persistent: it stays until it is removed, whoever dies.
//
// Example: a heartbeat.
//
//   writer->Renew(request.caller, key, absl::ZeroDuration(),
//                 [responder = std::move(responder)](absl::StatusOr<LiveInstance> live) mutable {
//                   // NOT_FOUND: the client registers again.
//                   responder.Send(live.ok() ? Response::Text("ok") : ErrorOf(live.status()));
//                 });
//
// Thread safety: all methods from any thread. Callbacks run once, on any thread, possibly before
// the method returns.

#ifndef FAILBACK_GATEWAY_DOOR_INSTANCE_WRITER_H_
#define FAILBACK_GATEWAY_DOOR_INSTANCE_WRITER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/model/messages.h"
#include "registry/registry.h"
#include "registry/security/identity.h"

namespace failback {

// An instance that was put, and how it goes on.
struct LiveInstance {
  // How far the intent has come: ACKNOWLEDGED at a registry, at least ACCEPTED at an agent.
  registry::v1::IntentState state = registry::v1::INTENT_STATE_UNSPECIFIED;
  // Renew within this time; zero: it is persistent.
  absl::Duration ttl;
};

class InstanceWriter {
 public:
  virtual ~InstanceWriter() = default;

  struct PutRequest {
    ServiceInstance instance;
    // Zero: persistent, until Remove. Else clamped to what the registry allows.
    absl::Duration ttl;
    // At an agent: answer when it has come this far. Unset: ACCEPTED.
    registry::v1::IntentState wait_for = registry::v1::INTENT_STATE_UNSPECIFIED;
  };

  // Registers or updates the instance, and renews it. Errors are those of Registry::Register, of
  // the call or of the one item.
  virtual void Put(const Identity& caller, PutRequest request, Callback<LiveInstance> done) = 0;

  // Renews what this door has put with a TTL; `ttl` zero: with the same as before. NOT_FOUND when
  // it is not known here, or has expired: the client puts it again. A persistent instance is
  // NOT_FOUND too.
  virtual void Renew(const Identity& caller, const InstanceKey& key, absl::Duration ttl,
                     Callback<LiveInstance> done) = 0;

  // Unregisters the instance. OK when it is not there. An instance that another client's session
  // holds is removed as by an operator: its owner may register it again.
  virtual void Remove(const Identity& caller, const InstanceKey& key,
                      registry::v1::IntentState wait_for, Callback<LiveInstance> done) = 0;
};

}  // namespace failback

#endif  // FAILBACK_GATEWAY_DOOR_INSTANCE_WRITER_H_
