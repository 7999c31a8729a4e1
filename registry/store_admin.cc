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

class StoreAdmin final : public RegistryAdmin {
 public:
  StoreAdmin(StoreRegistry* registry, std::string store, absl::Time start_time)
      : RegistryAdmin(registry, std::move(store), start_time), registry_(registry) {}

  std::string ListVersion() const override {
    // What is held back changes without a revision.
    return absl::StrCat(registry_->epoch(), ".", registry_->revision(), ".",
                        registry_->hold_serial());
  }

  void ListServices(const admin::v1::ListServicesRequest& request,
                    Callback<admin::v1::ListServicesResponse> done) const override {
    std::move(done)(QueryServices(request, registry_->ServiceSummaries()));
  }

  void DescribeInstance(const admin::v1::DescribeInstanceRequest& request,
                        Callback<admin::v1::InstanceDescription> done) const override {
    if (auto status = ValidateKey(FieldPath("key"), request.key()); !status.ok()) {
      return std::move(done)(status);
    }
    std::move(done)(registry_->Describe(request.key()));
  }

  void ListSessions(const admin::v1::ListSessionsRequest& request,
                    Callback<admin::v1::ListSessionsResponse> done) const override {
    std::move(done)(registry_->ListSessions(request));
  }

  void ListAgents(const admin::v1::ListAgentsRequest& request,
                  Callback<admin::v1::ListAgentsResponse> done) const override {
    std::move(done)(registry_->ListAgents(request));
  }

  void SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                        Callback<admin::v1::SetEvictionGuardResponse> done) const override {
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

 protected:
  void AddOverview(admin::v1::Overview* overview) const override {
    RegistryAdmin::AddOverview(overview);
    admin::v1::RegistryOverview* const registry = overview->mutable_registry();
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
    const auto services = registry_->ServiceSummaries();
    overview->set_services(static_cast<int32_t>(services.size()));
    for (const admin::v1::ServiceSummary& service : services) {
      Add(service.instances(), overview->mutable_instances());
    }
  }

 private:
  StoreRegistry* const registry_;
};

}  // namespace

std::unique_ptr<RegistryAdmin> NewStoreAdmin(StoreRegistry* registry, std::string store,
                                             absl::Time start_time) {
  return std::make_unique<StoreAdmin>(registry, std::move(store), start_time);
}

}  // namespace failback
