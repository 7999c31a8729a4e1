#include "registry/admin/admin_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/errors.h"
#include "registry/utf8.h"
#include "registry/validation.h"

namespace failback {
namespace {

using admin::v1::DescribeInstanceRequest;
using admin::v1::GetOverviewRequest;
using admin::v1::InstanceDescription;
using admin::v1::ListInstancesRequest;
using admin::v1::ListInstancesResponse;
using admin::v1::ListServicesRequest;
using admin::v1::ListServicesResponse;
using admin::v1::Overview;
using admin::v1::SetOfflineRequest;
using admin::v1::SetOfflineResponse;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

}  // namespace

AdminService::AdminService(const Admin* admin, std::shared_ptr<AccessControl> access)
    : admin_(admin), access_(std::move(access)) {}

template <typename Request, typename Response>
ServerUnaryReactor* AdminService::Serve(CallbackServerContext* context, const Request& request,
                                        Response* response,
                                        void (Admin::*method)(const Request&, Callback<Response>)
                                            const) {
  ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (access_ != nullptr) {
    const absl::Status status = access_->Check(*context, config::v1::PERMISSION_ADMINISTER);
    if (!status.ok()) {
      reactor->Finish(StatusToGrpc(status));
      return reactor;
    }
  }
  // Finish may free the reactor and the response, so it comes last.
  (admin_->*method)(request, [reactor, response](absl::StatusOr<Response> result) {
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(StatusToGrpc(result.status()));
  });
  return reactor;
}

ServerUnaryReactor* AdminService::GetOverview(CallbackServerContext* context,
                                              const GetOverviewRequest* request,
                                              Overview* response) {
  return Serve(context, *request, response, &Admin::AnswerOverview);
}

ServerUnaryReactor* AdminService::ListServices(CallbackServerContext* context,
                                               const ListServicesRequest* request,
                                               ListServicesResponse* response) {
  return Serve(context, *request, response, &Admin::ListServices);
}

ServerUnaryReactor* AdminService::ListInstances(CallbackServerContext* context,
                                                const ListInstancesRequest* request,
                                                ListInstancesResponse* response) {
  return Serve(context, *request, response, &Admin::ListInstances);
}

ServerUnaryReactor* AdminService::DescribeInstance(CallbackServerContext* context,
                                                   const DescribeInstanceRequest* request,
                                                   InstanceDescription* response) {
  return Serve(context, *request, response, &Admin::DescribeInstance);
}

ServerUnaryReactor* AdminService::SetOffline(CallbackServerContext* context,
                                             const SetOfflineRequest* request,
                                             SetOfflineResponse* response) {
  if (access_ == nullptr) return Serve(context, *request, response, &Admin::SetOffline);
  SetOfflineRequest told = *request;
  // What the caller calls itself counts for no more than who it is.
  if (const auto who = access_->Identify(*context); who.ok()) {
    told.set_by(told.by().empty() ? who->ToString()
                                  : absl::StrCat(told.by(), " by ", who->ToString()));
    CutUtf8(kMaxOfflineByBytes, told.mutable_by());
  }
  return Serve(context, told, response, &Admin::SetOffline);
}

ServerUnaryReactor* AdminService::ListSessions(CallbackServerContext* context,
                                               const admin::v1::ListSessionsRequest* request,
                                               admin::v1::ListSessionsResponse* response) {
  return Serve(context, *request, response, &Admin::ListSessions);
}

ServerUnaryReactor* AdminService::ListAgents(CallbackServerContext* context,
                                             const admin::v1::ListAgentsRequest* request,
                                             admin::v1::ListAgentsResponse* response) {
  return Serve(context, *request, response, &Admin::ListAgents);
}

ServerUnaryReactor* AdminService::SetEvictionGuard(
    CallbackServerContext* context, const admin::v1::SetEvictionGuardRequest* request,
    admin::v1::SetEvictionGuardResponse* response) {
  return Serve(context, *request, response, &Admin::SetEvictionGuard);
}

}  // namespace failback
