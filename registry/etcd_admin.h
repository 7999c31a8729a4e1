// The Admin of a registry over etcd. What it reports is etcd's, and so the same at every registry
// over the same keys, but for the agents, which each knows of its own callers.
//
// Thread safety: as Admin.

#ifndef FAILBACK_REGISTRY_ETCD_ADMIN_H_
#define FAILBACK_REGISTRY_ETCD_ADMIN_H_

#include <string>

#include "registry/etcd/etcd_registry.h"
#include "registry/registry_admin.h"

namespace failback {

class EtcdAdmin final : public RegistryAdmin {
 public:
  // `registry` outlives the object. `store` is as configured.
  EtcdAdmin(EtcdRegistry* registry, std::string store, absl::Time start_time)
      : RegistryAdmin(registry, std::move(store), start_time), registry_(registry) {}

  // Not ready either when etcd does not answer: nothing can be read.
  admin::v1::Readiness GetReadiness() const override;
  // From here on: once etcd is known not to answer, that is the answer, at once.
  //
  // With what etcd reports about the store; without it, and with the error, when etcd does not
  // answer.
  void AnswerOverview(const admin::v1::GetOverviewRequest& request,
                      Callback<admin::v1::Overview> done) const override;
  void ListServices(const admin::v1::ListServicesRequest& request,
                    Callback<admin::v1::ListServicesResponse> done) const override;
  void DescribeInstance(const admin::v1::DescribeInstanceRequest& request,
                        Callback<admin::v1::InstanceDescription> done) const override;
  void ListSessions(const admin::v1::ListSessionsRequest& request,
                    Callback<admin::v1::ListSessionsResponse> done) const override;
  void ListAgents(const admin::v1::ListAgentsRequest& request,
                  Callback<admin::v1::ListAgentsResponse> done) const override;
  // UNIMPLEMENTED: etcd ends leases by itself.
  void SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                        Callback<admin::v1::SetEvictionGuardResponse> done) const override;

 private:
  EtcdRegistry* const registry_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_ADMIN_H_
