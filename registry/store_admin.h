// The Admin of a registry on a store of its own.
//
// Thread safety: as Admin.

#ifndef FAILBACK_REGISTRY_STORE_ADMIN_H_
#define FAILBACK_REGISTRY_STORE_ADMIN_H_

#include <string>

#include "registry/registry_admin.h"
#include "registry/store/store_registry.h"

namespace failback {

class StoreAdmin final : public RegistryAdmin {
 public:
  // `registry` outlives the object.
  StoreAdmin(StoreRegistry* registry, std::string store, absl::Time start_time);

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
  StoreRegistry* const registry_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_ADMIN_H_
