// What an operator asks of a registry's sessions and of the agents behind them. Pure.

#ifndef FAILBACK_REGISTRY_MODEL_FLEET_QUERY_H_
#define FAILBACK_REGISTRY_MODEL_FLEET_QUERY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "failback/admin/v1/admin.pb.h"

namespace failback {

// Why an agent needs a look, each for a person; empty when it is well. Times in its report are by
// its own clock.
std::vector<std::string> TroublesOf(const admin::v1::SessionSummary& session,
                                    const registry::v1::AgentReport& report, absl::Time now);

// INVALID_ARGUMENT names the field. `sessions` may be in any order.
absl::StatusOr<admin::v1::ListSessionsResponse> QuerySessions(
    const admin::v1::ListSessionsRequest& request, std::vector<admin::v1::SessionSummary> sessions);

// Likewise; fills in the troubles.
absl::StatusOr<admin::v1::ListAgentsResponse> QueryAgents(
    const admin::v1::ListAgentsRequest& request, std::vector<admin::v1::AgentSummary> agents,
    absl::Time now);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_FLEET_QUERY_H_
