#include "gateway/http/problem.h"

#include <string>

#include "boost/beast/http/status.hpp"
#include "failback/gateway/v1/gateway.pb.h"
#include "gateway/http/message_json.h"
#include "registry/model/errors.h"

namespace failback::http {
Response Problem(const absl::Status& status) { return Problem(HttpStatusOf(status), status); }

Response Problem(int http_status, const absl::Status& status) {
  gateway::v1::Problem problem;
  problem.set_type("about:blank");
  const auto title = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(http_status)));
  problem.set_title(std::string(title));
  problem.set_status(http_status);
  problem.set_detail(std::string(status.message()));
  problem.set_code(absl::StatusCodeToString(status.code()));
  problem.set_reason(ReasonText(status));
  for (auto& [key, value] : ReasonMetadata(status)) (*problem.mutable_metadata())[key] = value;
  Response response;
  response.status = http_status;
  response.content_type = "application/problem+json";
  absl::StatusOr<std::string> json = MessageJson(problem);
  response.body = json.ok() ? *std::move(json) : std::string("{}");
  if (http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  AddRetryAfter(status, &response);
  return response;
}

}  // namespace failback::http
