#include "registry/admin/registry_admin.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/admin/instance_query.h"
#include "registry/errors.h"
#include "registry/log.h"
#include "registry/validation.h"

namespace failback {
namespace {

admin::v1::EvictionGuardState GuardState(const Leases::Statistics& leases) {
  if (!leases.guard) return admin::v1::EVICTION_GUARD_STATE_OFF;
  return leases.held > 0 ? admin::v1::EVICTION_GUARD_STATE_HOLDING
                         : admin::v1::EVICTION_GUARD_STATE_WATCHING;
}

}  // namespace

using admin::v1::DescribeInstanceRequest;
using admin::v1::InstanceDescription;
using admin::v1::ListServicesRequest;
using admin::v1::ListServicesResponse;
using admin::v1::Overview;
using admin::v1::RegistryOverview;
using admin::v1::ServiceSummary;

RegistryAdmin::RegistryAdmin(Registry* registry, std::string store, absl::Time start_time)
    : Admin(admin::v1::DAEMON_KIND_REGISTRY, registry, start_time),
      store_registry_(dynamic_cast<StoreRegistry*>(registry)),
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
  // What is held back changes without a revision.
  return absl::StrCat(store_registry_->epoch(), ".", store_registry_->revision(), ".",
                      store_registry_->hold_serial());
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

void RegistryAdmin::ListSessions(const admin::v1::ListSessionsRequest& request,
                                 Callback<admin::v1::ListSessionsResponse> done) const {
  if (store_registry_ == nullptr) return Admin::ListSessions(request, std::move(done));
  std::move(done)(store_registry_->ListSessions(request));
}

void RegistryAdmin::ListAgents(const admin::v1::ListAgentsRequest& request,
                               Callback<admin::v1::ListAgentsResponse> done) const {
  if (store_registry_ == nullptr) return Admin::ListAgents(request, std::move(done));
  std::move(done)(store_registry_->ListAgents(request));
}

void RegistryAdmin::SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                                     Callback<admin::v1::SetEvictionGuardResponse> done) const {
  if (store_registry_ == nullptr) return Admin::SetEvictionGuard(request, std::move(done));
  if (!request.has_enabled() && !request.release()) {
    return std::move(done)(InvalidField("enabled", "is required, unless release is set"));
  }
  int64_t released = 0;
  if (request.has_enabled()) released += store_registry_->SetEvictionGuard(request.enabled());
  if (request.release()) released += store_registry_->ReleaseHeldSessions();
  Log(LogLevel::kWarning, "eviction guard set by an operator",
      {{"enabled", request.has_enabled() ? (request.enabled() ? "true" : "false") : "unchanged"},
       {"released", absl::StrCat(released)}});
  admin::v1::SetEvictionGuardResponse response;
  response.set_state(GuardState(store_registry_->Stats().leases));
  response.set_released(static_cast<int32_t>(released));
  std::move(done)(std::move(response));
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
  registry->set_eviction_guard(GuardState(stats.leases));
  const StoreRegistry::AgentCounts agents = store_registry_->CountAgents();
  registry->set_agents(static_cast<int32_t>(agents.agents));
  registry->set_agents_in_trouble(static_cast<int32_t>(agents.in_trouble));
  if (!stats.write_status.ok())
    *registry->mutable_write_status() = StatusToProto(stats.write_status);
  const std::vector<ServiceSummary> services = store_registry_->ServiceSummaries();
  overview->set_services(static_cast<int32_t>(services.size()));
  for (const ServiceSummary& service : services) {
    Add(service.instances(), overview->mutable_instances());
  }
}

}  // namespace failback
