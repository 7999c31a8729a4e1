// An Admin of failback-registry: its store, sessions and history.
//
// Thread safety: as Admin.

#ifndef FAILBACK_REGISTRY_ADMIN_REGISTRY_ADMIN_H_
#define FAILBACK_REGISTRY_ADMIN_REGISTRY_ADMIN_H_

#include <atomic>
#include <string>

#include "registry/admin/admin.h"
#include "registry/store/store_registry.h"

namespace failback {

class RegistryAdmin final : public Admin {
 public:
  // `registry` outlives the object. Of a StoreRegistry more can be told than of any other. `store`
  // is as configured.
  RegistryAdmin(Registry* registry, std::string store, absl::Time start_time);

  // From now on it tells that it is not ready.
  void Stopping() { stopping_ = true; }

  admin::v1::Readiness GetReadiness() const override;
  std::string ListVersion() const override;
  void ListServices(const admin::v1::ListServicesRequest& request,
                    Callback<admin::v1::ListServicesResponse> done) const override;
  void DescribeInstance(const admin::v1::DescribeInstanceRequest& request,
                        Callback<admin::v1::InstanceDescription> done) const override;
  void ListSessions(const admin::v1::ListSessionsRequest& request,
                    Callback<admin::v1::ListSessionsResponse> done) const override;
  void ListAgents(const admin::v1::ListAgentsRequest& request,
                  Callback<admin::v1::ListAgentsResponse> done) const override;
  void SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                        Callback<admin::v1::SetEvictionGuardResponse> done) const override;

 protected:
  void AddOverview(admin::v1::Overview* overview) const override;

 private:
  StoreRegistry* const store_registry_;  // null: the store is elsewhere
  const std::string store_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ADMIN_REGISTRY_ADMIN_H_
