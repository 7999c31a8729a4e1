// The Admin of failback-registry, whatever keeps its instances: StoreAdmin and EtcdAdmin add the
// sessions, the agents and the history.
//
// Thread safety: as Admin.

#ifndef FAILBACK_REGISTRY_REGISTRY_ADMIN_H_
#define FAILBACK_REGISTRY_REGISTRY_ADMIN_H_

#include <atomic>
#include <string>

#include "daemon/admin/admin.h"

namespace failback {

class RegistryAdmin : public Admin {
 public:
  // `registry` outlives the object. `store` is as configured.
  RegistryAdmin(Registry* registry, std::string store, absl::Time start_time);

  // From now on it reports that it is not ready.
  void Stopping() { stopping_ = true; }

  admin::v1::Readiness GetReadiness() const override;

 protected:
  void AddOverview(admin::v1::Overview* overview) const override;

 private:
  const std::string store_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_REGISTRY_ADMIN_H_
