#include "daemon/http/request_checks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "openssl/crypto.h"
#include "registry/base/address.h"
#include "registry/base/small_file.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;

bool SameBytes(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

AdminResponse Denied(const std::string& message) {
  return AdminResponse::Error(Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED, message));
}

std::optional<AdminResponse> RefuseChange(const HttpRequest& request,
                                          const std::string& token_file) {
  const std::string_view origin = View(request[http::field::origin]);
  const std::string_view site = View(request["Sec-Fetch-Site"]);
  if ((!origin.empty() &&
       origin != absl::StrCat("http://", std::string(View(request[http::field::host])))) ||
      (!site.empty() && site != "same-origin" && site != "none")) {
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
  std::string_view shown = View(request[http::field::authorization]);
  constexpr std::string_view kBearer = "Bearer ";
  const bool bearer = absl::StartsWithIgnoreCase(absl::string_view(shown.data(), shown.size()),
                                                 absl::string_view(kBearer.data(), kBearer.size()));
  if (!bearer || !SameBytes(std::string(shown.substr(kBearer.size())), *token)) {
    AdminResponse response = AdminResponse::Error(
        Refusal(registry::v1::ERROR_REASON_CREDENTIALS_NEEDED,
                bearer ? "Authorization: the token is not the one in admin.token_file"
                       : "Authorization: a change needs `Bearer` and the token in "
                         "admin.token_file"));
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  const std::string_view type = View(request[http::field::content_type]);
  if (!request.body().empty() && type.substr(0, type.find(';')) != "application/json") {
    return AdminResponse::Error(415,
                                InvalidField("Content-Type", "only application/json is taken"));
  }
  return std::nullopt;
}

}  // namespace

absl::Status CheckUnambiguous(const HttpRequest& request) {
  if (request.count(http::field::host) > 1) return InvalidField("Host", "there is more than one");
  const auto coding = request.find(http::field::transfer_encoding);
  if (coding == request.end()) return absl::OkStatus();
  if (request.count(http::field::transfer_encoding) > 1 ||
      !beast::iequals(coding->value(), "chunked") || request.version() != 11) {
    return InvalidField("Transfer-Encoding", "only chunked is taken, once, in HTTP/1.1");
  }
  return request.count(http::field::content_length) > 0
             ? InvalidField("Content-Length", "not together with Transfer-Encoding")
             : absl::OkStatus();
}

absl::Status CheckHost(std::string_view host, const std::vector<std::string>& allowed) {
  std::string name(host);
  if (!name.empty() && name.front() == '[') {
    const size_t end = name.find(']');
    name = end == std::string::npos ? "" : name.substr(1, end - 1);
  } else {
    name = name.substr(0, name.find(':'));
  }
  if (HostKindOf(name) != HostKind::kName || absl::EqualsIgnoreCase(name, "localhost") ||
      std::any_of(allowed.begin(), allowed.end(),
                  [&](const std::string& known) { return absl::EqualsIgnoreCase(known, name); })) {
    return absl::OkStatus();
  }
  return Refusal(
      registry::v1::ERROR_REASON_ACCESS_DENIED,
      absl::StrCat("Host: '", std::string(host),
                   "' is not a name of this server; use its IP address or localhost, or add the "
                   "name to admin.hosts"));
}

std::optional<AdminResponse> RefuseRequest(const HttpRequest& request,
                                           const std::vector<std::string>& hosts,
                                           const std::string& token_file) {
  const absl::Status host = CheckHost(View(request[http::field::host]), hosts);
  if (!host.ok()) return AdminResponse::Error(host);
  if (request.method() == http::verb::post) return RefuseChange(request, token_file);
  return std::nullopt;
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
