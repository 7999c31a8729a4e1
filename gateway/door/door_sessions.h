// The InstanceWriter of the front doors, over any Registry: FailbackGroup at an agent, where writes
// are carried like those of its other clients, and the store or etcd at a registry.
//
// An instance with a TTL has a session. What was put last is kept beside it, and Renew puts it
// again in that session: so a heartbeat also brings back what an operator, or a registry that lost
// its state, has removed; and it answers SUPERSEDED when another client has taken the key. What has
// not been renewed for its TTL has expired if the registry says so, and is forgotten here after
// another one.
//
// The writes of one key take turns, so that a Remove that ends the session takes no later Put along.
//
// Example:
//
//   DoorSessions writer(registry, access, {&timer, "eureka"});
//   writer.Put(caller, {instance, absl::Seconds(90)}, done);
//
// Thread safety: all methods from any thread. It may be destroyed while calls are under way: their
// callbacks run all the same.
//
// Invariants:
// 1. An incarnation is "DOOR:NAMESPACE/SERVICE/ID", or, where that is too long, ends with a digest.
// 2. At most one write of a key is under way; at most kMostWaiting wait for it.

#ifndef FAILBACK_GATEWAY_DOOR_DOOR_SESSIONS_H_
#define FAILBACK_GATEWAY_DOOR_DOOR_SESSIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "gateway/door/instance_writer.h"
#include "registry/registry.h"
#include "registry/security/access_control.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class DoorSessions final : public InstanceWriter {
 public:
  static constexpr size_t kMostWaiting = 16;

  struct Options {
    // Required; outlives this.
    HashedWheelTimer* timer = nullptr;
    // "http", "consul", "eureka".
    std::string door;
    // Whether what has no TTL outlives the agent that carries it. False: at an agent it goes with the
    // agent's session, and comes back with the agent, by its journal.
    bool persistent = true;
  };

  // `registry` outlives the calls under way. `access` null: callers are not distinguished.
  DoorSessions(Registry* registry, std::shared_ptr<AccessControl> access, Options options);
  ~DoorSessions() override;

  void Put(const Identity& caller, PutRequest request, Callback<LiveInstance> done) override;
  void Renew(const Identity& caller, const InstanceKey& key, absl::Duration ttl,
             Callback<LiveInstance> done) override;
  void Remove(const Identity& caller, const InstanceKey& key, registry::v1::IntentState wait_for,
              Callback<LiveInstance> done) override;

  // Instances that live on renewals through this door.
  int64_t live() const;

 private:
  class Core;
  const std::shared_ptr<Core> core_;
};

// The incarnation of a key's session.
std::string DoorIncarnation(const std::string& door, const InstanceKey& key);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_DOOR_DOOR_SESSIONS_H_
