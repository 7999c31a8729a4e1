#include "registry/admin/registry_admin.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/admin/instance_query.h"
#include "registry/errors.h"
#include "registry/validation.h"

namespace failback {

using admin::v1::DescribeInstanceRequest;
using admin::v1::InstanceDescription;
using admin::v1::ListServicesRequest;
using admin::v1::ListServicesResponse;
using admin::v1::Overview;
using admin::v1::RegistryOverview;
using admin::v1::ServiceSummary;

RegistryAdmin::RegistryAdmin(Registry* registry, std::string store, absl::Time start_time)
    : Admin(admin::v1::DAEMON_KIND_REGISTRY, registry, start_time),
      store_registry_(dynamic_cast<const StoreRegistry*>(registry)),
      store_(std::move(store)) {}

// A store that cannot be written is no reason: reads go on, and to send clients away would take
// them what they still have.
admin::v1::Readiness RegistryAdmin::GetReadiness() const {
  admin::v1::Readiness readiness;
  readiness.set_ready(!stopping_);
  if (stopping_) readiness.add_reasons("the registry is stopping");
  return readiness;
}

std::string RegistryAdmin::ListVersion() const {
  if (store_registry_ == nullptr) return "";
  return absl::StrCat(store_registry_->epoch(), ".", store_registry_->revision());
}

void RegistryAdmin::ListServices(const ListServicesRequest& request,
                                 Callback<ListServicesResponse> done) const {
  if (store_registry_ == nullptr) return Admin::ListServices(request, std::move(done));
  std::move(done)(QueryServices(request, store_registry_->ServiceSummaries()));
}

void RegistryAdmin::DescribeInstance(const DescribeInstanceRequest& request,
                                     Callback<InstanceDescription> done) const {
  if (store_registry_ == nullptr) return Admin::DescribeInstance(request, std::move(done));
  if (auto status = ValidateKey(FieldPath("key"), request.key()); !status.ok()) {
    return std::move(done)(status);
  }
  std::move(done)(store_registry_->Describe(request.key()));
}

void RegistryAdmin::AddOverview(Overview* overview) const {
  RegistryOverview* const registry = overview->mutable_registry();
  registry->set_store(store_);
  if (store_registry_ == nullptr) return;
  const StoreRegistry::Statistics stats = store_registry_->Stats();
  registry->set_complete(true);
  registry->set_store_id(stats.store_id);
  registry->set_epoch(stats.epoch);
  registry->set_revision(stats.revision);
  registry->set_sessions(static_cast<int32_t>(stats.sessions));
  registry->set_incarnations(static_cast<int32_t>(stats.incarnations));
  registry->set_tombstones(static_cast<int32_t>(stats.tombstones));
  registry->set_subscribers(static_cast<int32_t>(stats.subscribers));
  registry->set_expired_sessions(stats.expired_sessions);
  registry->set_held_back_leases(static_cast<int32_t>(stats.leases.held));
  registry->set_eviction_guard(stats.leases.held > 0 ? admin::v1::EVICTION_GUARD_STATE_HOLDING
                                                     : admin::v1::EVICTION_GUARD_STATE_WATCHING);
  if (!stats.write_status.ok())
    *registry->mutable_write_status() = StatusToProto(stats.write_status);
  const std::vector<ServiceSummary> services = store_registry_->ServiceSummaries();
  overview->set_services(static_cast<int32_t>(services.size()));
  for (const ServiceSummary& service : services) {
    Add(service.instances(), overview->mutable_instances());
  }
}

}  // namespace failback
