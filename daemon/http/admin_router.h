// Which handler a request is for: paths with `{…}` segments, and their decoding. Pure.

#ifndef FAILBACK_DAEMON_HTTP_ADMIN_ROUTER_H_
#define FAILBACK_DAEMON_HTTP_ADMIN_ROUTER_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/http/admin_server.h"

namespace failback {

class AdminRouter {
 public:
  void Add(const std::string& method, const std::string& pattern, AdminServer::Handler handler);

  struct Match {
    const AdminServer::Handler* handler = nullptr;
    std::vector<std::string> parameters;
    // Of the methods that the path has, when `handler` is null; empty: there is no such path.
    std::vector<std::string> allowed;
  };
  // `path` is percent-encoded and begins with a slash. INVALID_ARGUMENT when it cannot be decoded.
  absl::StatusOr<Match> Find(const std::string& method, std::string_view path) const;

  // `GET /services`, …, in the order of Add.
  std::vector<std::string> paths() const;

 private:
  struct Route {
    std::string method;
    std::string pattern;
    std::vector<std::string> segments;
    AdminServer::Handler handler;
  };
  std::vector<Route> routes_;
};

// Decodes `%41`; with `plus`, `+` too. INVALID_ARGUMENT for what is no encoding.
absl::StatusOr<std::string> PercentDecode(std::string_view text, bool plus);

// `a=1&b=2`.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseQuery(std::string_view text);

}  // namespace failback

#endif  // FAILBACK_DAEMON_HTTP_ADMIN_ROUTER_H_
