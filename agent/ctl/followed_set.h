// What a subscription has sent so far, put together: the set, and each change of it as one event.
//
// A snapshot that comes in parts is one event. After a stream has broken and another has begun, a
// first message that repeats what is known already is none.
//
// Thread safety: none.

#ifndef FAILBACK_AGENT_CTL_FOLLOWED_SET_H_
#define FAILBACK_AGENT_CTL_FOLLOWED_SET_H_

#include <map>
#include <optional>
#include <string>

#include "failback/registry/v1/registry.pb.h"

namespace failback {

class FollowedSet {
 public:
  // Takes a message; what it changes as one message, or nullopt when it is a part of a snapshot or
  // changes nothing.
  std::optional<registry::v1::SubscribeResponse> Apply(
      const registry::v1::SubscribeResponse& message);

  // Another stream begins.
  void Restart() { parts_.Clear(); }

  // By instance id; by name in a list of services.
  const std::map<std::string, registry::v1::ServiceInstance>& instances() const {
    return instances_;
  }
  bool known() const { return known_; }
  bool stale() const { return stale_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }

 private:
  registry::v1::Snapshot parts_;
  std::map<std::string, registry::v1::ServiceInstance> instances_;
  bool known_ = false;
  bool stale_ = false;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_FOLLOWED_SET_H_
