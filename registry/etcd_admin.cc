#include "registry/etcd_admin.h"

#include <string>
#include <utility>

#include "registry/model/errors.h"

namespace failback {
namespace {

class EtcdAdmin final : public RegistryAdmin {
 public:
  EtcdAdmin(EtcdRegistry* registry, std::string store, absl::Time start_time)
      : RegistryAdmin(registry, std::move(store), start_time), registry_(registry) {}

  // Not ready either when etcd does not answer: nothing can be read.
  admin::v1::Readiness GetReadiness() const override {
    admin::v1::Readiness readiness = RegistryAdmin::GetReadiness();
    const absl::Status etcd = registry_->Reachable();
    if (etcd.ok()) return readiness;
    readiness.set_ready(false);
    readiness.add_reasons(std::string(etcd.message()));
    return readiness;
  }

  // With what etcd reports about the store; without it, and with the error, when etcd does not
  // answer.
  void AnswerOverview(const admin::v1::GetOverviewRequest& request,
                      Callback<admin::v1::Overview> done) const override {
    if (const absl::Status etcd = registry_->Reachable(); !etcd.ok()) {
      admin::v1::Overview overview = GetOverview();
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

  void ListServices(const admin::v1::ListServicesRequest& request,
                    Callback<admin::v1::ListServicesResponse> done) const override {
    if (absl::Status etcd = registry_->Reachable(); !etcd.ok()) return std::move(done)(etcd);
    registry_->ListServices(request, std::move(done));
  }

  void DescribeInstance(const admin::v1::DescribeInstanceRequest& request,
                        Callback<admin::v1::InstanceDescription> done) const override {
    if (absl::Status etcd = registry_->Reachable(); !etcd.ok()) return std::move(done)(etcd);
    registry_->Describe(request.key(), std::move(done));
  }

  void ListSessions(const admin::v1::ListSessionsRequest& request,
                    Callback<admin::v1::ListSessionsResponse> done) const override {
    if (absl::Status etcd = registry_->Reachable(); !etcd.ok()) return std::move(done)(etcd);
    registry_->ListSessions(request, std::move(done));
  }

  void ListAgents(const admin::v1::ListAgentsRequest& request,
                  Callback<admin::v1::ListAgentsResponse> done) const override {
    // It is this server that knows them; but without etcd none renews, and all would seem to have
    // ended.
    if (absl::Status etcd = registry_->Reachable(); !etcd.ok()) return std::move(done)(etcd);
    registry_->ListAgents(request, std::move(done));
  }

  void SetEvictionGuard(const admin::v1::SetEvictionGuardRequest& request,
                        Callback<admin::v1::SetEvictionGuardResponse> done) const override {
    std::move(done)(Refusal(
        registry::v1::ERROR_REASON_UNSUPPORTED,
        "there is no eviction guard over etcd: etcd ends sessions by itself, with their leases"));
  }

 private:
  EtcdRegistry* const registry_;
};

}  // namespace

std::unique_ptr<RegistryAdmin> NewEtcdAdmin(EtcdRegistry* registry, std::string store,
                                            absl::Time start_time) {
  return std::make_unique<EtcdAdmin>(registry, std::move(store), start_time);
}

}  // namespace failback
