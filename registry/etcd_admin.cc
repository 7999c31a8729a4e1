#include "registry/etcd_admin.h"

#include <string>
#include <utility>

#include "registry/model/errors.h"

namespace failback {

using admin::v1::Overview;

admin::v1::Readiness EtcdAdmin::GetReadiness() const {
  admin::v1::Readiness readiness = RegistryAdmin::GetReadiness();
  const absl::Status etcd = registry_->Reachable();
  if (etcd.ok()) return readiness;
  readiness.set_ready(false);
  readiness.add_reasons(std::string(etcd.message()));
  return readiness;
}

void EtcdAdmin::AnswerOverview(const admin::v1::GetOverviewRequest& request,
                               Callback<Overview> done) const {
  if (const absl::Status etcd = registry_->Reachable(); !etcd.ok()) {
    Overview overview = GetOverview();
    *overview.mutable_registry()->mutable_write_status() = StatusToProto(etcd);
    return std::move(done)(std::move(overview));
  }
  registry_->Count([overview = GetOverview(), done = std::move(done)](
                       absl::StatusOr<admin::v1::RegistryOverview> counts) mutable {
    if (counts.ok()) {
      overview.mutable_registry()->MergeFrom(*counts);
    } else {
      *overview.mutable_registry()->mutable_write_status() = StatusToProto(counts.status());
    }
    std::move(done)(std::move(overview));
  });
}

void EtcdAdmin::ListServices(const admin::v1::ListServicesRequest& request,
                             Callback<admin::v1::ListServicesResponse> done) const {
  if (absl::Status etcd = registry_->Reachable(); !etcd.ok()) return std::move(done)(etcd);
  registry_->ListServices(request, std::move(done));
}

void EtcdAdmin::DescribeInstance(const admin::v1::DescribeInstanceRequest& request,
                                 Callback<admin::v1::InstanceDescription> done) const {
  if (absl::Status etcd = registry_->Reachable(); !etcd.ok()) return std::move(done)(etcd);
  registry_->Describe(request.key(), std::move(done));
}

void EtcdAdmin::ListSessions(const admin::v1::ListSessionsRequest& request,
                             Callback<admin::v1::ListSessionsResponse> done) const {
  if (absl::Status etcd = registry_->Reachable(); !etcd.ok()) return std::move(done)(etcd);
  registry_->ListSessions(request, std::move(done));
}

void EtcdAdmin::ListAgents(const admin::v1::ListAgentsRequest& request,
                           Callback<admin::v1::ListAgentsResponse> done) const {
  // It is this server that knows them; but without etcd none renews, and all would seem gone.
  if (absl::Status etcd = registry_->Reachable(); !etcd.ok()) return std::move(done)(etcd);
  registry_->ListAgents(request, std::move(done));
}

void EtcdAdmin::SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                                 Callback<admin::v1::SetEvictionGuardResponse> done) const {
  std::move(done)(Refusal(
      registry::v1::ERROR_REASON_UNSUPPORTED,
      "there is no eviction guard over etcd: etcd ends sessions by itself, with their leases"));
}

}  // namespace failback
