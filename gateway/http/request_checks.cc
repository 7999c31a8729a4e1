#include "gateway/http/request_checks.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "registry/base/address.h"
#include "registry/model/errors.h"

namespace failback::http {
namespace {

namespace beast = boost::beast;
using beast::http::field;

}  // namespace

absl::Status CheckUnambiguous(const ParsedRequest& request) {
  if (request.count(field::host) > 1) return InvalidField("Host", "there is more than one");
  const auto coding = request.find(field::transfer_encoding);
  if (coding == request.end()) return absl::OkStatus();
  if (request.count(field::transfer_encoding) > 1 || !beast::iequals(coding->value(), "chunked") ||
      request.version() != 11) {
    return InvalidField("Transfer-Encoding", "only chunked is taken, once, in HTTP/1.1");
  }
  return absl::OkStatus();  // the parser takes no Content-Length beside it
}

absl::Status CheckHost(std::string_view host, const std::vector<std::string>& allowed,
                       const std::string& key) {
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
                   "name to ",
                   key));
}

bool IsFromAnotherSite(std::string_view origin, std::string_view site, std::string_view own) {
  return (!origin.empty() && origin != own) ||
         (!site.empty() && site != "same-origin" && site != "none");
}

}  // namespace failback::http
