#include "gateway/door/door_guard.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gateway/http/request_checks.h"
#include "registry/base/proto_time.h"
#include "registry/model/errors.h"
#include "registry/security/token_seal.h"

namespace failback {
namespace {

using http::Request;
using http::Response;

constexpr char kCall[] = "HTTP";
// Of all that is sealed under the process' key: this is a ticket.
constexpr char kTicketMark[] = "ticket:";

absl::Status BadTicket(const std::string& what) {
  return Refusal(registry::v1::ERROR_REASON_CREDENTIALS_NEEDED,
                 absl::StrCat("ticket: ", what, "; ask for one with POST /v1/tickets"));
}

void AllowOrigin(std::string_view origin, Request* request) {
  request->response_headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  request->response_headers.emplace_back("Vary", "Origin");
}

Response Preflight(std::string_view origin) {
  Response response;
  response.status = 204;
  response.headers = {
      {"Access-Control-Allow-Origin", std::string(origin)},
      {"Access-Control-Allow-Methods", "GET, PUT, POST, DELETE"},
      {"Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID"},
      {"Access-Control-Max-Age", "600"},
      {"Vary", "Origin"}};
  return response;
}

class Guard {
 public:
  Guard(DoorGuard guard, bool encrypted,
        std::function<Response(int http_status, const absl::Status& status)> error)
      : guard_(std::move(guard)), encrypted_(encrypted), error_(std::move(error)) {}

  std::optional<Response> Admit(const http::Shown& shown, Request* request) const {
    const std::string_view host = request->Header("Host");
    if (!encrypted_) {
      const absl::Status known = http::CheckHost(host, guard_.hosts, guard_.hosts_key);
      if (!known.ok()) return error_(403, known);
    }
    const std::string_view origin = request->Header("Origin");
    const std::string own = absl::StrCat(encrypted_ ? "https://" : "http://", std::string(host));
    const bool allowed = !origin.empty() && std::find(guard_.origins.begin(), guard_.origins.end(),
                                                      origin) != guard_.origins.end();
    if (allowed && request->method == "OPTIONS") return Preflight(origin);
    request->from_another_site =
        !allowed && http::IsFromAnotherSite(origin, request->Header("Sec-Fetch-Site"), own);
    if (allowed) {
      AllowOrigin(origin, request);
    } else if (request->method != "GET" && request->from_another_site) {
      return error_(403, Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED,
                                 "Origin: the request comes from a page of another site, which is "
                                 "none of http.origins"));
    }
    absl::StatusOr<Identity> caller = Identify(shown, *request);
    if (!caller.ok()) return error_(401, caller.status());
    request->caller = *std::move(caller);
    return std::nullopt;
  }

 private:
  absl::StatusOr<Identity> Identify(const http::Shown& shown, const Request& request) const {
    if (guard_.access == nullptr) return request.caller;
    const std::string_view authorization = request.Header("Authorization");
    if (authorization.empty() && request.method == "GET" && request.HasQuery("ticket")) {
      absl::StatusOr<Identity> owner =
          OwnerOfTicket(request.Query("ticket"), request.path, absl::Now());
      if (!owner.ok()) {
        return guard_.access->Denied(request.caller, kCall, config::v1::PERMISSION_UNSPECIFIED,
                                     owner.status());
      }
      owner->peer = request.caller.peer;
      return owner;
    }
    AccessControl::Shown call;
    if (!authorization.empty()) call.authorization = std::string(authorization);
    call.owner = shown.owner;
    call.certificate = shown.certificate;
    call.peer = request.caller.peer;
    return guard_.access->Identify(call, kCall);
  }

  const DoorGuard guard_;
  const bool encrypted_;
  const std::function<Response(int http_status, const absl::Status& status)> error_;
};

}  // namespace

void GuardDoor(const DoorGuard& guard, http::Server::Options* options) {
  const auto shared = std::make_shared<const Guard>(guard, options->tls != nullptr, options->error);
  options->admit = [shared](const http::Shown& shown, Request* request) {
    return shared->Admit(shown, request);
  };
  options->headers = {{"X-Content-Type-Options", "nosniff"}, {"Cache-Control", "no-store"}};
}

absl::Status MayRead(AccessControl* access, const Identity& caller, const std::string& name_space,
                     const std::string& service) {
  if (access == nullptr) return absl::OkStatus();
  const auto rules = access->rules();
  absl::Status status =
      service.empty() ? rules->JudgeAll(caller, config::v1::PERMISSION_READ, name_space)
                      : rules->Judge(caller, config::v1::PERMISSION_READ, name_space, service);
  if (status.ok()) return status;
  return access->Denied(caller, kCall, config::v1::PERMISSION_READ, std::move(status));
}

absl::Status MayReadSome(AccessControl* access, const Identity& caller,
                         const std::string& name_space) {
  if (access == nullptr) return absl::OkStatus();
  const auto rules = access->rules();
  const absl::Status all = rules->JudgeAll(caller, config::v1::PERMISSION_READ, name_space);
  if (all.ok() || !rules->GrantsOf(caller, config::v1::PERMISSION_READ, name_space).empty()) {
    return absl::OkStatus();
  }
  return access->Denied(caller, kCall, config::v1::PERMISSION_READ, all);
}

gateway::v1::Ticket NewTicket(const Identity& caller, const std::string& path, absl::Time now) {
  gateway::v1::TicketContent content;
  content.set_path(path);
  content.set_expire_seconds(absl::ToUnixSeconds(now + kTicketTime));
  content.set_kind(static_cast<int>(caller.kind));
  for (const std::string& name : caller.names) content.add_names(name);
  content.set_token_digest(caller.token_digest);
  gateway::v1::Ticket ticket;
  ticket.set_ticket(SealToken(absl::StrCat(kTicketMark, content.SerializeAsString())));
  *ticket.mutable_expire_time() = ToProto(absl::FromUnixSeconds(content.expire_seconds()));
  return ticket;
}

absl::StatusOr<Identity> OwnerOfTicket(const std::string& ticket, const std::string& path,
                                       absl::Time now) {
  const std::optional<std::string> opened = OpenToken(ticket);
  constexpr size_t kMark = sizeof(kTicketMark) - 1;
  gateway::v1::TicketContent content;
  if (!opened.has_value() || opened->compare(0, kMark, kTicketMark) != 0 ||
      !content.ParseFromString(opened->substr(kMark))) {
    return BadTicket("is none of this server");
  }
  if (content.path() != path) return BadTicket("is for another path");
  if (now >= absl::FromUnixSeconds(content.expire_seconds())) return BadTicket("is too old");
  Identity owner;
  owner.kind = static_cast<Identity::Kind>(content.kind());
  owner.names.assign(content.names().begin(), content.names().end());
  owner.token_digest = content.token_digest();
  return owner;
}

}  // namespace failback
