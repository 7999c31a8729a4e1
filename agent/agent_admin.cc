#include "agent/agent_admin.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/carried_overlay.h"
#include "daemon/admin/admin_routes.h"
#include "failback/agent/v1/agent.pb.h"
#include "registry/failback/status_policy.h"
#include "registry/model/canonical.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using admin::v1::DescribeInstanceRequest;
using admin::v1::InstanceDescription;
using agent::v1::CancelRequest;
using agent::v1::CancelResponse;
using agent::v1::CarriedIntent;
using agent::v1::DrainRequest;
using agent::v1::DrainResponse;
using agent::v1::GetStatusResponse;
using agent::v1::ListIntentsRequest;
using agent::v1::ListIntentsResponse;
using agent::v1::ListPendingRequest;
using agent::v1::ListPendingResponse;
using agent::v1::PendingOperation;
using agent::v1::RetryRequest;
using agent::v1::RetryResponse;

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
  *status = service_->Status();
  CarriedCounts counts = CountCarried(group_->Carried());
  *overview->mutable_instances() = std::move(counts.instances);
  overview->set_services(counts.services);
  uint64_t pending = 0;
  uint64_t parked = 0;
  uint64_t superseded = 0;
  for (const auto& upstream : status->upstreams()) {
    pending += upstream.pending();
    parked += upstream.parked();
    superseded += upstream.superseded();
  }
  overview->set_superseded(static_cast<int32_t>(superseded));
  overview->set_pending(static_cast<int32_t>(pending));
  overview->set_parked(static_cast<int32_t>(parked));
}

void AgentAdmin::ListAll(const Selector& selector, Callback<Listing> done) const {
  Admin::ListAll(selector,
                 [this, selector, done = std::move(done)](absl::StatusOr<Listing> listing) mutable {
                   std::string begins = absl::StrCat(selector.namespace_(), std::string(1, '\0'));
                   if (!selector.service().empty()) {
                     absl::StrAppend(&begins, selector.service(), std::string(1, '\0'));
                   }
                   std::vector<CarriedIntent> carried;
                   for (const CarriedRecord& record : group_->Carried(begins)) {
                     carried.push_back(record.ToProto());
                   }
                   const bool known = listing.ok();
                   if (!known) {
                     if (carried.empty()) return std::move(done)(listing.status());
                     const absl::Status why = listing.status();
                     listing = Listing();
                     listing->stale = absl::IsUnavailable(why) && !IsDeniedUpstream(why);
                     if (!listing->stale) listing->unread = why;
                   }
                   CarriedOverlay overlay;
                   overlay.all = !known;
                   overlay.incarnation = group_->incarnation();
                   OverlayCarried(carried, overlay, &listing->records);
                   std::move(done)(std::move(listing));
                 });
}

void AgentAdmin::DescribeInstance(const DescribeInstanceRequest& request,
                                  Callback<InstanceDescription> done) const {
  InstanceKey key = request.key();
  NormalizeKey(&key);
  FindInstance(
      key, [this, key, done = std::move(done)](absl::StatusOr<InstanceDescription> found) mutable {
        if (!found.ok()) return std::move(done)(found.status());
        history_->AddTo(key, &*found);
        const std::string wanted = CanonicalKey(key);
        for (PendingOperation& row : group_->Pending()) {
          if (row.has_key() && CanonicalKey(row.key()) == wanted) {
            *found->add_pending() = std::move(row);
          }
        }
        std::move(done)(UnlessUnknown(key, std::move(found)));
      });
}

void AddAgentRoutes(AgentService* service, http::Server* server) {
  server->Handle("GET", "/status", [service](const http::Request& request, auto respond) {
    std::move(respond)(MessageResponse(request.wants_text(), service->Status()));
  });
  HandleList<ListPendingRequest>(
      server, "/pending",
      [service](const http::Request& request, const ListPendingRequest& list, auto respond) {
        Responder<ListPendingResponse>(request, std::move(respond))(service->Pending(list));
      });
  HandleList<ListIntentsRequest>(
      server, "/intents",
      [service](const http::Request& request, const ListIntentsRequest& list, auto respond) {
        Responder<ListIntentsResponse>(request, std::move(respond))(service->Intents(list));
      });
  HandlePost<RetryRequest>(
      server, "/pending/retry",
      [service](const http::Request& request, const RetryRequest& retry, auto respond) {
        service->RetryNow(retry, Responder<RetryResponse>(request, std::move(respond)));
      });
  HandlePost<CancelRequest>(
      server, "/pending/cancel",
      [service](const http::Request& request, const CancelRequest& cancel, auto respond) {
        service->GiveUp(cancel, Responder<CancelResponse>(request, std::move(respond)));
      });
  HandlePost<DrainRequest>(
      server, "/drain",
      [service](const http::Request& request, const DrainRequest& drain, auto respond) {
        // A std::function, which is copied.
        auto answer = std::make_shared<Callback<DrainResponse>>(
            Responder<DrainResponse>(request, std::move(respond)));
        service->DrainWithin(
            drain, absl::StrCat("admin endpoint at ", request.peer),
            [answer](const absl::StatusOr<DrainResponse>& result) { std::move (*answer)(result); });
      });
}

}  // namespace failback
