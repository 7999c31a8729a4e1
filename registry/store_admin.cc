#include "registry/store_admin.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"
#include "registry/model/instance_query.h"
#include "registry/model/validation.h"

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

StoreAdmin::StoreAdmin(StoreRegistry* registry, std::string store, absl::Time start_time)
    : RegistryAdmin(registry, std::move(store), start_time), registry_(registry) {}

std::string StoreAdmin::ListVersion() const {
  // What is held back changes without a revision.
  return absl::StrCat(registry_->epoch(), ".", registry_->revision(), ".",
                      registry_->hold_serial());
}

void StoreAdmin::ListServices(const ListServicesRequest& request,
                              Callback<ListServicesResponse> done) const {
  std::move(done)(QueryServices(request, registry_->ServiceSummaries()));
}

void StoreAdmin::DescribeInstance(const DescribeInstanceRequest& request,
                                  Callback<InstanceDescription> done) const {
  if (auto status = ValidateKey(FieldPath("key"), request.key()); !status.ok()) {
    return std::move(done)(status);
  }
  std::move(done)(registry_->Describe(request.key()));
}

void StoreAdmin::ListSessions(const admin::v1::ListSessionsRequest& request,
                              Callback<admin::v1::ListSessionsResponse> done) const {
  std::move(done)(registry_->ListSessions(request));
}

void StoreAdmin::ListAgents(const admin::v1::ListAgentsRequest& request,
                            Callback<admin::v1::ListAgentsResponse> done) const {
  std::move(done)(registry_->ListAgents(request));
}

void StoreAdmin::SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                                  Callback<admin::v1::SetEvictionGuardResponse> done) const {
  if (!request.has_enabled() && !request.release()) {
    return std::move(done)(InvalidField("enabled", "is required, unless release is set"));
  }
  if (auto status = ValidateOperator(request.by()); !status.ok()) return std::move(done)(status);
  int64_t released = 0;
  if (request.has_enabled()) {
    released += registry_->SetEvictionGuard(request.enabled(), request.by());
  }
  if (request.release()) released += registry_->ReleaseHeldSessions(request.by());
  // Sessions end by this: beside what was done, who asked for it.
  Log(LogLevel::kWarning, "eviction guard set by an operator",
      {{"enabled", request.has_enabled() ? (request.enabled() ? "true" : "false") : "unchanged"},
       {"released", absl::StrCat(released)},
       {"by", request.by()}});
  admin::v1::SetEvictionGuardResponse response;
  response.set_state(GuardState(registry_->Stats().leases));
  response.set_released(static_cast<int32_t>(released));
  std::move(done)(std::move(response));
}

void StoreAdmin::AddOverview(Overview* overview) const {
  RegistryAdmin::AddOverview(overview);
  RegistryOverview* const registry = overview->mutable_registry();
  if (registry_ == nullptr) return;
  const StoreRegistry::Statistics stats = registry_->Stats();
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
  const StoreRegistry::AgentCounts agents = registry_->CountAgents();
  registry->set_agents(static_cast<int32_t>(agents.agents));
  registry->set_agents_in_trouble(static_cast<int32_t>(agents.in_trouble));
  if (!stats.write_status.ok())
    *registry->mutable_write_status() = StatusToProto(stats.write_status);
  const std::vector<ServiceSummary> services = registry_->ServiceSummaries();
  overview->set_services(static_cast<int32_t>(services.size()));
  for (const ServiceSummary& service : services) {
    Add(service.instances(), overview->mutable_instances());
  }
}

}  // namespace failback
