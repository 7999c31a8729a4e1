// What an agent carries, put over what its registries list.
//
// A registry does not list what it has not acknowledged, and a listed record says nothing of the
// agent's own intent. The overlay adds the first and sets the state of the second. The agent's
// admin endpoint and `failbackctl list` show the result.
//
// Thread safety: pure.

#ifndef FAILBACK_AGENT_CARRIED_OVERLAY_H_
#define FAILBACK_AGENT_CARRIED_OVERLAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "failback/admin/v1/admin.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/failback/carried_record.h"

namespace failback {

struct CarriedOverlay {
  bool all = false;  // acknowledged intents too: the registries' own listing is not known
  bool add = true;   // records that no registry lists
  // The agent's own, which does not hold a key that is superseded. Empty when it is not known.
  std::string incarnation;
};

// Puts `carried`, in the order of ListIntents, over `records`, which end sorted by key.
//
// * Of several upstreams the first that has not acknowledged an intent gives the state.
// * The owner of a record is the one that a registry lists. It is the holder that the refusal of a
//   superseded intent names instead where no registry lists the record, or where the one that is
//   listed may come from another registry than the one that refused: another has acknowledged the
//   intent, or the owner listed is the agent itself.
void OverlayCarried(const std::vector<agent::v1::CarriedIntent>& carried,
                    const CarriedOverlay& overlay,
                    std::vector<registry::v1::InstanceRecord>* records);

// Counts the instances of `carried`, sorted by key, and their services. Each instance counts once,
// in the state that OverlayCarried gives it.
struct CarriedCounts {
  admin::v1::InstanceCounts instances;
  int32_t services = 0;
};
CarriedCounts CountCarried(const std::vector<CarriedRecord>& carried);

}  // namespace failback

#endif  // FAILBACK_AGENT_CARRIED_OVERLAY_H_
