// Which handler a request is for: paths with `{…}` segments, and their decoding. Pure.
//
// A path is divided at its slashes before it is decoded, so that `%2F` stays inside a segment.
//
// Example:
//
//   Router router;
//   router.Add("GET", "/v1/services/{service}", handler);
//   const absl::StatusOr<Router::Match> match = router.Find("GET", {"v1", "services", "a/b"});
//
// Thread safety: Add on one thread before anything else; Find from any thread.

#ifndef FAILBACK_GATEWAY_HTTP_ROUTER_H_
#define FAILBACK_GATEWAY_HTTP_ROUTER_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/http/message.h"
#include "gateway/http/responder.h"

namespace failback::http {

// Runs on a thread of the server and must not block.
using Handler = std::function<void(const Request&, Responder)>;

class Router {
 public:
  // A `{…}` of a pattern stands for any one segment that is not empty. Of two patterns that match,
  // the one that was added first is meant.
  void Add(const std::string& method, const std::string& pattern, Handler handler);

  struct Match {
    const Handler* handler = nullptr;
    std::vector<std::string> parameters;
    // Of the methods that the path has, when `handler` is null; empty: there is no such path.
    std::vector<std::string> allowed;
  };
  Match Find(std::string_view method, const std::vector<std::string>& segments) const;

  // `GET /services`, …, in the order of Add.
  std::vector<std::string> paths() const;

 private:
  struct Route {
    std::string method;
    std::string pattern;
    std::vector<std::string> segments;
    Handler handler;
  };
  std::vector<Route> routes_;
};

// Decodes `%41`; with `plus`, `+` too. INVALID_ARGUMENT for what is no encoding.
absl::StatusOr<std::string> PercentDecode(std::string_view text, bool plus);

// The segments of an encoded path that begins with a slash, decoded.
absl::StatusOr<std::vector<std::string>> ParsePath(std::string_view path);

// `a=1&b=2`.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseQuery(std::string_view text);

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_ROUTER_H_
