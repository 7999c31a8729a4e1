#include "daemon/admin/admin_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "failback/admin/v1/admin.grpc.pb.h"
#include "registry/model/validation.h"
#include "registry/rpc/bounded_call.h"

namespace failback {
namespace {

using admin::v1::SetEvictionGuardRequest;
using admin::v1::SetEvictionGuardResponse;
using admin::v1::SetOfflineRequest;
using admin::v1::SetOfflineResponse;
using grpc::ByteBuffer;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// All are served on encoded messages: registry/rpc/bounded_call.h.
using ServiceBase = admin::v1::AdminService::WithRawCallbackMethod_GetOverview<
    admin::v1::AdminService::WithRawCallbackMethod_ListServices<
        admin::v1::AdminService::WithRawCallbackMethod_ListInstances<
            admin::v1::AdminService::WithRawCallbackMethod_DescribeInstance<
                admin::v1::AdminService::WithRawCallbackMethod_SetOffline<
                    admin::v1::AdminService::WithRawCallbackMethod_ListSessions<
                        admin::v1::AdminService::WithRawCallbackMethod_ListAgents<
                            admin::v1::AdminService::WithRawCallbackMethod_SetEvictionGuard<
                                admin::v1::AdminService::WithRawCallbackMethod_ExplainDnsName<
                                    admin::v1::AdminService::Service>>>>>>>>>;

class AdminService final : public ServiceBase {
 public:
  AdminService(const Admin* admin, std::shared_ptr<AccessControl> access)
      : admin_(admin), access_(std::move(access)) {}

  ServerUnaryReactor* GetOverview(CallbackServerContext* context, const ByteBuffer* request,
                                  ByteBuffer* response) override {
    return Serve(context, "GetOverview", *request, response, &Admin::AnswerOverview);
  }

  ServerUnaryReactor* ListServices(CallbackServerContext* context, const ByteBuffer* request,
                                   ByteBuffer* response) override {
    return Serve(context, "ListServices", *request, response, &Admin::ListServices);
  }

  ServerUnaryReactor* ListInstances(CallbackServerContext* context, const ByteBuffer* request,
                                    ByteBuffer* response) override {
    return Serve(context, "ListInstances", *request, response, &Admin::ListInstances);
  }

  ServerUnaryReactor* DescribeInstance(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return Serve(context, "DescribeInstance", *request, response, &Admin::DescribeInstance);
  }

  ServerUnaryReactor* ListSessions(CallbackServerContext* context, const ByteBuffer* request,
                                   ByteBuffer* response) override {
    return Serve(context, "ListSessions", *request, response, &Admin::ListSessions);
  }

  ServerUnaryReactor* ListAgents(CallbackServerContext* context, const ByteBuffer* request,
                                 ByteBuffer* response) override {
    return Serve(context, "ListAgents", *request, response, &Admin::ListAgents);
  }

  ServerUnaryReactor* ExplainDnsName(CallbackServerContext* context, const ByteBuffer* request,
                                     ByteBuffer* response) override {
    return Serve(context, "ExplainDnsName", *request, response, &Admin::ExplainDnsName);
  }

  ServerUnaryReactor* SetOffline(CallbackServerContext* context, const ByteBuffer* request,
                                 ByteBuffer* response) override {
    return BoundedCall<SetOfflineRequest, SetOfflineResponse>(
        context, *request, response, MayAdminister(*context, "SetOffline"),
        [&](const SetOfflineRequest& request, Callback<SetOfflineResponse> done) {
          if (access_ == nullptr) return admin_->SetOffline(request, std::move(done));
          if (auto status = ValidateOperator(request.by()); !status.ok()) {
            return std::move(done)(status);
          }
          SetOfflineRequest signed_request = request;
          if (const auto who = access_->Identify(*context, "SetOffline"); who.ok()) {
            signed_request.set_by(NameOperator(request.by(), who->ToString()));
          }
          admin_->SetOffline(signed_request, std::move(done));
        });
  }

  ServerUnaryReactor* SetEvictionGuard(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return BoundedCall<SetEvictionGuardRequest, SetEvictionGuardResponse>(
        context, *request, response, MayAdminister(*context, "SetEvictionGuard"),
        [&](const SetEvictionGuardRequest& request, Callback<SetEvictionGuardResponse> done) {
          if (auto status = ValidateOperator(request.by()); !status.ok()) {
            return std::move(done)(status);
          }
          std::string caller = "anonymous";
          if (access_ != nullptr) {
            const auto who = access_->Identify(*context, "SetEvictionGuard");
            if (who.ok()) caller = who->ToString();
          }
          SetEvictionGuardRequest signed_request = request;
          signed_request.set_by(
              NameOperator(request.by(), absl::StrCat(caller, " at ", context->peer())));
          admin_->SetEvictionGuard(signed_request, std::move(done));
        });
  }

 private:
  absl::Status MayAdminister(const CallbackServerContext& context, const char* call) const {
    if (access_ == nullptr) return absl::OkStatus();
    return access_->Check(context, call, config::v1::PERMISSION_ADMINISTER);
  }

  template <typename Request, typename Response>
  ServerUnaryReactor* Serve(CallbackServerContext* context, const char* call,
                            const ByteBuffer& bytes, ByteBuffer* response,
                            void (Admin::*method)(const Request&, Callback<Response>) const) {
    return BoundedCall<Request, Response>(context, bytes, response, MayAdminister(*context, call),
                                          [&](const Request& request, Callback<Response> done) {
                                            (admin_->*method)(request, std::move(done));
                                          });
  }

  const Admin* const admin_;
  const std::shared_ptr<AccessControl> access_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewAdminService(const Admin* admin,
                                               std::shared_ptr<AccessControl> access) {
  return std::make_unique<AdminService>(admin, std::move(access));
}

}  // namespace failback
