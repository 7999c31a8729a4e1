// What an HTTP request passes before anything else looks at it: it is unambiguous, and it comes to
// a name of this server.
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_HTTP_REQUEST_CHECKS_H_
#define FAILBACK_GATEWAY_HTTP_REQUEST_CHECKS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "boost/beast/http.hpp"

namespace failback::http {

using ParsedRequest = boost::beast::http::request<boost::beast::http::string_body>;

inline std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Why a proxy on the way may have read this request as another one, or as two; OK: it has not.
absl::Status CheckUnambiguous(const ParsedRequest& request);

// OK when a Host header (`name`, `name:port`, `[::1]:port`) is an IP address, `localhost`, or in
// `allowed`; so a page of another site cannot read anything by pointing its own name here (DNS
// rebinding). Otherwise PERMISSION_DENIED, which says that `key` of the configuration has the names.
absl::Status CheckHost(std::string_view host, const std::vector<std::string>& allowed,
                       const std::string& key);

// Whether a request with these headers comes from a page of another site: `origin` and `site` are
// Origin and Sec-Fetch-Site, `own` the origin that the server has for it, as "http://127.0.0.1:80".
bool IsFromAnotherSite(std::string_view origin, std::string_view site, std::string_view own);

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_REQUEST_CHECKS_H_
