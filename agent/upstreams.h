// The registries that an agent's intents are carried to, from their texts in the configuration.
//
//   auto upstreams =
//       NewUpstreams({"old=grpc://10.0.0.1:7070", "new=etcd://10.0.0.2:2379"}, timer.get(),
//                    {EtcdScheme});
//
// Thread safety: all functions may be called from any thread.

#ifndef FAILBACK_AGENT_UPSTREAMS_H_
#define FAILBACK_AGENT_UPSTREAMS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/client/upstream.h"
#include "registry/failback/failback_group.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// One upstream for each `[NAME=]URI`, connected lazily. INVALID_ARGUMENT names the text that is
// wrong and what is allowed. `timer` outlives them; null: texts are checked only, and an upstream
// that needs it is null. `schemes` are known beside grpc and unix.
absl::StatusOr<std::vector<FailbackGroup::Upstream>> NewUpstreams(
    const std::vector<std::string>& texts, HashedWheelTimer* timer,
    const std::vector<SchemeFactory>& schemes, UpstreamOptions options = UpstreamOptions());

}  // namespace failback

#endif  // FAILBACK_AGENT_UPSTREAMS_H_
