// AdminService over gRPC: an Admin for callers who may administer.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ADMIN_ADMIN_SERVICE_H_
#define FAILBACK_REGISTRY_ADMIN_ADMIN_SERVICE_H_

#include <memory>

#include "failback/admin/v1/admin.grpc.pb.h"
#include "registry/admin/admin.h"
#include "registry/security/access_control.h"

namespace failback {

class AdminService final : public admin::v1::AdminService::CallbackService {
 public:
  // For RegistryServer::Options::extra_services.
  static constexpr char kName[] = "failback.admin.v1.AdminService";

  // `admin` outlives the service. `access`, unless null, says who may administer.
  AdminService(const Admin* admin, std::shared_ptr<AccessControl> access);

  grpc::ServerUnaryReactor* GetOverview(grpc::CallbackServerContext* context,
                                        const admin::v1::GetOverviewRequest* request,
                                        admin::v1::Overview* response) override;
  grpc::ServerUnaryReactor* ListServices(grpc::CallbackServerContext* context,
                                         const admin::v1::ListServicesRequest* request,
                                         admin::v1::ListServicesResponse* response) override;
  grpc::ServerUnaryReactor* ListInstances(grpc::CallbackServerContext* context,
                                          const admin::v1::ListInstancesRequest* request,
                                          admin::v1::ListInstancesResponse* response) override;
  grpc::ServerUnaryReactor* DescribeInstance(grpc::CallbackServerContext* context,
                                             const admin::v1::DescribeInstanceRequest* request,
                                             admin::v1::InstanceDescription* response) override;
  grpc::ServerUnaryReactor* SetOffline(grpc::CallbackServerContext* context,
                                       const admin::v1::SetOfflineRequest* request,
                                       admin::v1::SetOfflineResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const admin::v1::ListSessionsRequest* request,
                                         admin::v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* ListAgents(grpc::CallbackServerContext* context,
                                       const admin::v1::ListAgentsRequest* request,
                                       admin::v1::ListAgentsResponse* response) override;
  grpc::ServerUnaryReactor* SetEvictionGuard(
      grpc::CallbackServerContext* context, const admin::v1::SetEvictionGuardRequest* request,
      admin::v1::SetEvictionGuardResponse* response) override;

 private:
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext* context, const Request& request,
                                  Response* response,
                                  void (Admin::*method)(const Request&, Callback<Response>) const);

  const Admin* const admin_;
  const std::shared_ptr<AccessControl> access_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ADMIN_ADMIN_SERVICE_H_
