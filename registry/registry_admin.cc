#include "registry/registry_admin.h"

#include <utility>

namespace failback {

RegistryAdmin::RegistryAdmin(Registry* registry, std::string store, absl::Time start_time)
    : Admin(admin::v1::DAEMON_KIND_REGISTRY, registry, start_time), store_(std::move(store)) {}

// A store that cannot be written is no reason: reads go on, and to send clients away would take
// them what they still have.
admin::v1::Readiness RegistryAdmin::GetReadiness() const {
  admin::v1::Readiness readiness;
  readiness.set_ready(!stopping_);
  if (stopping_) readiness.add_reasons("the registry is stopping");
  return readiness;
}

void RegistryAdmin::AddOverview(admin::v1::Overview* overview) const {
  overview->mutable_registry()->set_store(store_);
}

}  // namespace failback
