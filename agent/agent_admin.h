// An Admin of failback-agent: what it carries, what it owes, and how that went.
//
// Thread safety: as Admin; AddAgentRoutes as http::Server::Handle.

#ifndef FAILBACK_AGENT_AGENT_ADMIN_H_
#define FAILBACK_AGENT_AGENT_ADMIN_H_

#include "agent/agent_service.h"
#include "agent/intent_history.h"
#include "agent/readiness.h"
#include "daemon/admin/admin.h"
#include "gateway/http/server.h"
#include "registry/failback/failback_group.h"

namespace failback {

class AgentAdmin final : public Admin {
 public:
  // All outlive the object.
  AgentAdmin(FailbackGroup* registry, const AgentService* service, const ReadinessWatch* readiness,
             const IntentHistory* history, absl::Time start_time);

  admin::v1::Readiness GetReadiness() const override;
  void DescribeInstance(const admin::v1::DescribeInstanceRequest& request,
                        Callback<admin::v1::InstanceDescription> done) const override;

 protected:
  // As the registries list, with what this agent carries over it; that alone when they do not
  // answer or deny it.
  void ListAll(const Selector& selector, Callback<Listing> done) const override;
  void AddOverview(admin::v1::Overview* overview) const override;

 private:
  FailbackGroup* const group_;
  const AgentService* const service_;
  const ReadinessWatch* const readiness_;
  const IntentHistory* const history_;
};

// Adds the paths that only an agent has: /pending, /intents, /status, /drain. `service` outlives
// the server.
void AddAgentRoutes(AgentService* service, http::Server* server);

}  // namespace failback

#endif  // FAILBACK_AGENT_AGENT_ADMIN_H_
