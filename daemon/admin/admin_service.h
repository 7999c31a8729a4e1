// AdminService over gRPC: an Admin for callers who may administer.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_DAEMON_ADMIN_ADMIN_SERVICE_H_
#define FAILBACK_DAEMON_ADMIN_ADMIN_SERVICE_H_

#include <memory>

#include "daemon/admin/admin.h"
#include "failback/admin/v1/admin.grpc.pb.h"
#include "registry/security/access_control.h"

namespace failback {

// All are served on encoded messages: registry/rpc/bounded_call.h.
using AdminServiceBase = admin::v1::AdminService::WithRawCallbackMethod_GetOverview<
    admin::v1::AdminService::WithRawCallbackMethod_ListServices<
        admin::v1::AdminService::WithRawCallbackMethod_ListInstances<
            admin::v1::AdminService::WithRawCallbackMethod_DescribeInstance<
                admin::v1::AdminService::WithRawCallbackMethod_SetOffline<
                    admin::v1::AdminService::WithRawCallbackMethod_ListSessions<
                        admin::v1::AdminService::WithRawCallbackMethod_ListAgents<
                            admin::v1::AdminService::WithRawCallbackMethod_SetEvictionGuard<
                                admin::v1::AdminService::Service>>>>>>>>;

class AdminService final : public AdminServiceBase {
 public:
  // For RegistryServer::Options::extra_services.
  static constexpr char kName[] = "failback.admin.v1.AdminService";

  // `admin` outlives the service. `access`, unless null, says who may administer.
  AdminService(const Admin* admin, std::shared_ptr<AccessControl> access);

  grpc::ServerUnaryReactor* GetOverview(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListServices(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListInstances(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DescribeInstance(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SetOffline(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListAgents(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SetEvictionGuard(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;

 private:
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext* context, const char* call,
                                  const grpc::ByteBuffer& bytes, grpc::ByteBuffer* response,
                                  void (Admin::*method)(const Request&, Callback<Response>) const);
  absl::Status MayAdminister(const grpc::CallbackServerContext& context, const char* call) const;

  const Admin* const admin_;
  const std::shared_ptr<AccessControl> access_;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_ADMIN_ADMIN_SERVICE_H_
