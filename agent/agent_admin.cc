#include "agent/agent_admin.h"

#include <utility>
#include <vector>

#include "failback/agent/v1/agent.pb.h"
#include "registry/admin/admin_routes.h"
#include "registry/canonical.h"
#include "registry/errors.h"
#include "registry/validation.h"

namespace failback {
namespace {

using admin::v1::DescribeInstanceRequest;
using admin::v1::InstanceDescription;
using agent::v1::CancelRequest;
using agent::v1::CancelResponse;
using agent::v1::DrainRequest;
using agent::v1::DrainResponse;
using agent::v1::GetStatusResponse;
using agent::v1::ListPendingRequest;
using agent::v1::ListPendingResponse;
using agent::v1::PendingOperation;
using agent::v1::RetryRequest;
using agent::v1::RetryResponse;

// A session's id is what its owner proves itself with: for those who may administer, not for
// whoever can connect to the machine's loopback.
GetStatusResponse WithoutSecrets(GetStatusResponse status) {
  for (auto& upstream : *status.mutable_upstreams()) upstream.clear_session_id();
  return status;
}

}  // namespace

AgentAdmin::AgentAdmin(FailbackGroup* registry, const AgentService* service,
                       const ReadinessWatch* readiness, const IntentHistory* history,
                       absl::Time start_time)
    : Admin(admin::v1::DAEMON_KIND_AGENT, registry, start_time),
      group_(registry),
      service_(service),
      readiness_(readiness),
      history_(history) {}

admin::v1::Readiness AgentAdmin::GetReadiness() const {
  admin::v1::Readiness readiness;
  readiness.set_ready(readiness_->ready());
  if (readiness.ready()) return readiness;
  const GetStatusResponse status = service_->Status();
  const absl::Status why =
      status.draining() ? absl::UnavailableError("the agent is draining") : Readiness(status);
  readiness.add_reasons(why.ok() ? "the agent has just become ready" : std::string(why.message()));
  return readiness;
}

void AgentAdmin::AddOverview(admin::v1::Overview* overview) const {
  GetStatusResponse* const status = overview->mutable_agent();
  *status = WithoutSecrets(service_->Status());
  if (status->upstreams_size() > 0) {
    overview->mutable_instances()->set_total(static_cast<int32_t>(status->upstreams(0).desired()));
  }
  uint64_t pending = 0;
  uint64_t parked = 0;
  for (const auto& upstream : status->upstreams()) {
    pending += upstream.pending();
    parked += upstream.parked();
  }
  overview->set_pending(static_cast<int32_t>(pending));
  overview->set_parked(static_cast<int32_t>(parked));
}

void AgentAdmin::DescribeInstance(const DescribeInstanceRequest& request,
                                  Callback<InstanceDescription> done) const {
  InstanceKey key = request.key();
  NormalizeKey(&key);
  FindInstance(
      key, [this, key, done = std::move(done)](absl::StatusOr<InstanceDescription> found) mutable {
        if (!found.ok()) return std::move(done)(found.status());
        history_->Tell(key, &*found);
        const std::string wanted = CanonicalKey(key);
        for (PendingOperation& row : group_->Pending()) {
          if (row.has_key() && CanonicalKey(row.key()) == wanted) {
            *found->add_pending() = std::move(row);
          }
        }
        std::move(done)(UnlessUnknown(key, std::move(found)));
      });
}

void AddAgentRoutes(AgentService* service, AdminServer* server) {
  server->Handle("GET", "/status", [service](const AdminRequest& request, auto respond) {
    std::move(respond)(MessageResponse(request, WithoutSecrets(service->Status())));
  });
  server->Handle("GET", "/pending", [service](const AdminRequest& request, auto respond) {
    ListPendingRequest list;
    list.set_page_token(request.Query("page_token"));
    int32_t page_size = 0;
    if (auto status = ReadNumber(request, "page_size", &page_size); !status.ok()) {
      return std::move(respond)(AdminResponse::Error(status));
    }
    list.set_page_size(page_size);
    Responder<ListPendingResponse>(request, std::move(respond))(service->Pending(list));
  });
  server->Handle("POST", "/pending/retry", [service](const AdminRequest& request, auto respond) {
    RetryRequest retry;
    if (auto status = ParseBody(request, &retry); !status.ok()) {
      return std::move(respond)(AdminResponse::Error(status));
    }
    Responder<RetryResponse>(request, std::move(respond))(service->RetryNow(retry));
  });
  server->Handle("POST", "/pending/cancel", [service](const AdminRequest& request, auto respond) {
    CancelRequest cancel;
    if (auto status = ParseBody(request, &cancel); !status.ok()) {
      return std::move(respond)(AdminResponse::Error(status));
    }
    Responder<CancelResponse>(request, std::move(respond))(service->GiveUp(cancel));
  });
  server->Handle("POST", "/drain", [service](const AdminRequest& request, auto respond) {
    DrainRequest drain;
    if (auto status = ParseBody(request, &drain); !status.ok()) {
      return std::move(respond)(AdminResponse::Error(status));
    }
    // A std::function, which is copied.
    auto answer = std::make_shared<Callback<DrainResponse>>(
        Responder<DrainResponse>(request, std::move(respond)));
    service->DrainWithin(drain, [answer](const absl::StatusOr<DrainResponse>& result) {
      std::move (*answer)(result);
    });
  });
}

}  // namespace failback
