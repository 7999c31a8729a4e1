// What is particular to the admin endpoint as an HTTP server: who may change something, errors as
// JSON, and headers that keep browsers from mischief.
//
// * The Host header is an IP address, `localhost`, or one of `hosts`.
// * A POST has a JSON body, comes from no other site (Origin, Sec-Fetch-Site), and shows the token
//   of `token_file`, which is read again each time. Without such a file nothing can be changed.
//
// Thread safety: all functions from any thread.

#ifndef FAILBACK_DAEMON_ADMIN_ADMIN_GUARD_H_
#define FAILBACK_DAEMON_ADMIN_ADMIN_GUARD_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gateway/http/server.h"

namespace failback {

// Sets `admit`, `error`, `headers` and `name` of an admin endpoint.
void GuardAdmin(const std::vector<std::string>& hosts, const std::string& token_file,
                http::Server::Options* options);

// As `admin.v1.Error`; the HTTP status follows from the code.
http::Response AdminError(const absl::Status& status);
// The same with another HTTP status.
http::Response AdminError(int http_status, const absl::Status& status);

// The token in a file, without space around it. PERMISSION_DENIED, which names the file, when there
// is none.
absl::StatusOr<std::string> ReadAdminToken(const std::string& path);

}  // namespace failback

#endif  // FAILBACK_DAEMON_ADMIN_ADMIN_GUARD_H_
