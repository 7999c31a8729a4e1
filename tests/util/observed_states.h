// What a subscriber saw, checked against what was ever desired.
//
// The rules of docs/protocol.md ("Subscriptions"): within an epoch revisions only grow, no state
// comes twice in a row, a delta applies to the revision before it. And the rule that the project
// exists for: a subscriber sees of each instance only states that were desired, in the order in
// which they were desired; an instance that was unregistered does not come back from the dead.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_TESTS_UTIL_OBSERVED_STATES_H_
#define FAILBACK_TESTS_UTIL_OBSERVED_STATES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

class ObservedStates {
 public:
  // Instance ids to payloads; the payload tells two contents of one instance apart.
  using Instances = std::map<std::string, std::string>;
  struct State {
    uint64_t epoch = 0;
    uint64_t revision = 0;
    bool stale = false;
    Instances instances;
  };

  // Takes the next message of one subscription. An error names the rule that it breaks.
  absl::Status Apply(const registry::v1::SubscribeResponse& event);

  // Complete states, in order.
  const std::vector<State>& states() const { return states_; }
  // Ids of the newest state.
  std::set<std::string> CurrentIds() const;

 private:
  absl::Status ApplyDelta(const registry::v1::SubscribeResponse& event, State* next) const;

  std::vector<State> states_;
  Instances parts_;  // of a snapshot that is not complete
  bool in_parts_ = false;
};

// What was desired, step by step.
class DesiredHistory {
 public:
  void Registered(const registry::v1::ServiceInstance& instance);
  void Unregistered(const std::string& instance_id);
  // Sessions may have ended: instances may be seen gone at any time, and come back as they were.
  void MayLapse() { may_lapse_ = true; }

  // Whether the states of each instance, within each epoch, come from what was desired, in order.
  absl::Status Explains(const std::vector<ObservedStates::State>& states) const;

 private:
  // Per instance id: payloads in the order desired, "" for gone. Begins with gone.
  std::map<std::string, std::vector<std::string>> history_;
  bool may_lapse_ = false;
};

// All messages at once, then the history.
absl::Status CheckSubscription(const std::vector<registry::v1::SubscribeResponse>& events,
                               const DesiredHistory& desired);

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_OBSERVED_STATES_H_
