// What a subscription has sent so far, put together: the set, and each change of it as one message.
//
// A snapshot that comes in parts is one change. After a stream has broken and another has begun, a
// first message that repeats what is known already is none.
//
// Thread safety: none.

#ifndef FAILBACK_AGENT_CTL_FOLLOWED_SET_H_
#define FAILBACK_AGENT_CTL_FOLLOWED_SET_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/model/event_reader.h"
#include "registry/model/instance_set.h"

namespace failback {

class FollowedSet {
 public:
  // Takes a message; what it changes as one message, or nullopt when it is a part of a snapshot or
  // changes nothing. An error: it does not follow, and the next stream starts with a snapshot.
  absl::StatusOr<std::optional<registry::v1::SubscribeResponse>> Apply(
      const registry::v1::SubscribeResponse& message);

  // Another stream begins, from epoch() and revision().
  void Restart();

  // By instance id; by name in a list of services.
  const InstanceSet& instances() const { return set_; }
  bool known() const { return known_; }
  bool stale() const { return set_.flags().stale; }
  uint64_t epoch() const { return set_.epoch(); }
  uint64_t revision() const { return set_.revision(); }

 private:
  EventReader reader_;
  InstanceSet set_;
  bool known_ = false;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_FOLLOWED_SET_H_
