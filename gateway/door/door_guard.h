// What the front doors over HTTP let in: names of this server, pages of which sites, which callers.
//
// * Without TLS the Host header is an IP address, `localhost`, or one of `hosts`, so that a page of
//   another site cannot reach a door on loopback by pointing its own name here (DNS rebinding). With
//   TLS the certificate sees to that.
// * A request of another site's page (Origin, Sec-Fetch-Site) changes nothing, unless its origin is
//   one of `origins`; these are answered so that the page may read it (CORS), preflights included.
// * The caller is identified as for gRPC: `Authorization: Bearer`, else the client's certificate. A
//   GET without either may show a ticket (`?ticket=`): what POST /v1/tickets answered to the caller
//   for that path, within the last minute. Browsers' EventSource sends no header.
//
// Thread safety: all functions from any thread.

#ifndef FAILBACK_GATEWAY_DOOR_DOOR_GUARD_H_
#define FAILBACK_GATEWAY_DOOR_DOOR_GUARD_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "failback/gateway/v1/gateway.pb.h"
#include "gateway/http/server.h"
#include "registry/security/access_control.h"

namespace failback {

struct DoorGuard {
  std::vector<std::string> hosts = {};
  // As "https://console.example:8443".
  std::vector<std::string> origins = {};
  // The key of `hosts`, for errors.
  std::string hosts_key = "http.hosts";
  // Null: callers are not distinguished.
  std::shared_ptr<AccessControl> access = nullptr;
};

// Sets `admit` and `headers`. Options::tls and Options::error are set before.
void GuardDoor(const DoorGuard& guard, http::Server::Options* options);

// Whether the caller may read the service; with an empty name, the list of the namespace's services.
// OK where `access` is null. A refusal is logged and counted.
absl::Status MayRead(AccessControl* access, const Identity& caller, const std::string& name_space,
                     const std::string& service);

// Whether the caller may read any service of the namespace: who may not has no list of them, and does
// not make the daemon follow it.
absl::Status MayReadSome(AccessControl* access, const Identity& caller,
                         const std::string& name_space);

inline constexpr absl::Duration kTicketTime = absl::Minutes(1);

// For the caller and the path.
gateway::v1::Ticket NewTicket(const Identity& caller, const std::string& path, absl::Time now);
// Who got it. UNAUTHENTICATED for what is no ticket of this process, for another path, or over.
absl::StatusOr<Identity> OwnerOfTicket(const std::string& ticket, const std::string& path,
                                       absl::Time now);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_DOOR_DOOR_GUARD_H_
