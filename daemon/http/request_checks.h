// What an HTTP request passes before a handler of the admin endpoint sees it: it is unambiguous, it
// comes to a name of this machine, and if it changes something its caller shows the token.
//
// Thread safety: all functions from any thread.

#ifndef FAILBACK_DAEMON_HTTP_REQUEST_CHECKS_H_
#define FAILBACK_DAEMON_HTTP_REQUEST_CHECKS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "boost/beast/http.hpp"
#include "daemon/http/admin_message.h"

namespace failback {

using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;

inline std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Why a proxy on the way may have read this request as another one, or as two; OK: it has not.
absl::Status CheckUnambiguous(const HttpRequest& request);

// OK when a Host header (`name`, `name:port`, `[::1]:port`) is an IP address, `localhost`, or in
// `allowed`.
absl::Status CheckHost(std::string_view host, const std::vector<std::string>& allowed);

// The answer to a request that may not reach a handler; nullopt: it may. `hosts` and `token_file`
// are those of AdminServer::Options.
std::optional<AdminResponse> RefuseRequest(const HttpRequest& request,
                                           const std::vector<std::string>& hosts,
                                           const std::string& token_file);

// The token in a file, without space around it. PERMISSION_DENIED, which names the file, when there
// is none.
absl::StatusOr<std::string> ReadAdminToken(const std::string& path);

}  // namespace failback

#endif  // FAILBACK_DAEMON_HTTP_REQUEST_CHECKS_H_
