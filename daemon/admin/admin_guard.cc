#include "daemon/admin/admin_guard.h"

#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "failback/admin/v1/admin.pb.h"
#include "gateway/http/request_checks.h"
#include "google/protobuf/util/json_util.h"
#include "openssl/crypto.h"
#include "registry/base/log.h"
#include "registry/base/small_file.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

bool SameBytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

http::Response Denied(const std::string& message) {
  return AdminError(Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED, message));
}

std::optional<http::Response> RefuseChange(const http::Request& request,
                                           const std::string& token_file) {
  const std::string own = absl::StrCat("http://", std::string(request.Header("Host")));
  if (http::IsFromAnotherSite(request.Header("Origin"), request.Header("Sec-Fetch-Site"), own)) {
    return Denied("the request comes from a page of another site");
  }
  if (token_file.empty()) {
    return Denied(
        "changes need a token, and none is configured: put `token_file: "
        "/etc/failback/admin.token` under `admin:`, a file with a secret of your own");
  }
  const absl::StatusOr<std::string> token = ReadAdminToken(token_file);
  if (!token.ok()) {
    return Denied(absl::StrCat("admin.token_file: ", token.status().message(),
                               "; nothing can be changed without it"));
  }
  const std::string_view shown = request.Header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  const bool bearer = absl::StartsWithIgnoreCase(absl::string_view(shown.data(), shown.size()),
                                                 absl::string_view(kBearer.data(), kBearer.size()));
  if (!bearer || !SameBytes(shown.substr(kBearer.size()), *token)) {
    http::Response response =
        AdminError(Refusal(registry::v1::ERROR_REASON_CREDENTIALS_NEEDED,
                           bearer ? "Authorization: the token is not the one in admin.token_file"
                                  : "Authorization: a change needs `Bearer` and the token in "
                                    "admin.token_file"));
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  const std::string_view type = request.Header("Content-Type");
  if (!request.body.empty() && type.substr(0, type.find(';')) != "application/json") {
    return AdminError(415, InvalidField("Content-Type", "only application/json is taken"));
  }
  Log(LogLevel::kInfo, "admin request", {{"method", request.method}, {"path", request.path}});
  return std::nullopt;
}

std::string ErrorJson(const absl::Status& status) {
  admin::v1::Error error;
  error.set_code(absl::StatusCodeToString(status.code()));
  error.set_message(std::string(status.message()));
  error.set_reason(ReasonText(status));
  for (const char* key : {"limit", "actual", "rank", "generation"}) {
    if (const auto value = ReasonMetadata(status, key); value.has_value()) {
      (*error.mutable_details())[key] = *value;
    }
  }
  if (const auto delay = RetryDelayOf(status); delay.has_value()) {
    (*error.mutable_details())["retry_delay"] = absl::FormatDuration(*delay);
  }
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(error, &json);
  return json;
}

}  // namespace

void GuardAdmin(const std::vector<std::string>& hosts, const std::string& token_file,
                http::Server::Options* options) {
  options->name = "admin endpoint";
  options->error = [](int http_status, const absl::Status& status) {
    return AdminError(http_status, status);
  };
  options->admit = [hosts, token_file](const http::Shown&,
                                       http::Request* request) -> std::optional<http::Response> {
    const absl::Status host = http::CheckHost(request->Header("Host"), hosts, "admin.hosts");
    if (!host.ok()) return AdminError(host);
    if (request->method == "POST") return RefuseChange(*request, token_file);
    return std::nullopt;
  };
  // No outside assets, no framing, no guessing of types, no caching by others.
  options->headers = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
       "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cache-Control", "no-cache"},
      {"Vary", "Accept"},
  };
}

http::Response AdminError(const absl::Status& status) {
  return AdminError(http::HttpStatusOf(status), status);
}

http::Response AdminError(int http_status, const absl::Status& status) {
  http::Response response = http::Response::Json(ErrorJson(status));
  response.status = http_status;
  http::AddRetryAfter(status, &response);
  return response;
}

absl::StatusOr<std::string> ReadAdminToken(const std::string& path) {
  absl::StatusOr<std::string> token = ReadFile(path);
  if (!token.ok()) {
    return absl::PermissionDeniedError(absl::StrCat("'", path, "' ", token.status().message()));
  }
  absl::StripAsciiWhitespace(&*token);
  if (!token->empty()) return token;
  return absl::PermissionDeniedError(absl::StrCat("'", path, "' holds no token"));
}

}  // namespace failback
