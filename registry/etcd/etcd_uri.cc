#include "registry/etcd/etcd_uri.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "registry/base/address.h"
#include "registry/base/small_file.h"
#include "registry/security/client_security.h"

namespace failback {
namespace {

constexpr char kStart[] = "etcd://";
// Whom Debian's programs believe.
constexpr char kSystemAuthorities[] = "/etc/ssl/certs/ca-certificates.crt";
constexpr char kOptionNames[] = "user, password_file, ca, cert, key, server_name, tls";

using UriOptions = std::map<std::string, std::string>;

absl::StatusOr<UriOptions> ParseOptions(const std::string& text) {
  UriOptions options;
  if (text.empty()) return options;
  const std::vector<std::string> known = absl::StrSplit(kOptionNames, ", ");
  for (const auto part : absl::StrSplit(text, '&')) {
    std::pair<std::string, std::string> option = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (std::find(known.begin(), known.end(), option.first) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option '", option.first, "' is not known; there are ", kOptionNames));
    }
    if (option.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("option ", option.first, " has no value"));
    }
    if (!options.insert(std::move(option)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("option '", std::string(part), "' is there twice"));
    }
  }
  return options;
}

absl::Status SetCredentials(const UriOptions& options, EtcdRegistry::Options* registry) {
  const auto get = [&](const char* name) {
    const auto it = options.find(name);
    return it == options.end() ? std::string() : it->second;
  };
  const auto both = [&](const char* a, const char* b) {
    if (get(a).empty() == get(b).empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("options ", a, " and ", b, " belong together"));
  };
  for (const absl::Status& status : {both("user", "password_file"), both("cert", "key")}) {
    if (!status.ok()) return status;
  }
  const std::string tls = get("tls");
  if (!tls.empty() && tls != "true" && tls != "false") {
    return absl::InvalidArgumentError(
        absl::StrCat("option tls is '", tls, "', and not true or false"));
  }
  if (const std::string file = get("password_file"); !file.empty()) {
    absl::StatusOr<std::string> content = ReadFile(file);
    if (!content.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option password_file: '", file, "' ", content.status().message()));
    }
    registry->client.password = *std::move(content);
  }
  registry->client.user = get("user");
  absl::StripTrailingAsciiWhitespace(&registry->client.password);
  const bool encrypted = tls == "true" || !get("ca").empty() || !get("cert").empty();
  if (encrypted && tls != "false") {
    ClientSecurity::Options security;
    security.tls = {get("ca").empty() ? kSystemAuthorities : get("ca"), get("cert"), get("key")};
    security.server_name = get("server_name");
    auto loaded = ClientSecurity::Create(std::move(security));
    if (!loaded.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("option ", loaded.status().message()));
    }
    registry->client.channel.security = *std::move(loaded);
  } else if (encrypted || !get("server_name").empty()) {
    return absl::InvalidArgumentError("options ca, cert and server_name are for TLS: say tls=true");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EtcdRegistry::Options> ParseEtcdUri(const std::string& uri,
                                                   HashedWheelTimer* timer) {
  if (!absl::StartsWith(uri, kStart)) {
    return absl::InvalidArgumentError("'//' is missing after 'etcd:'");
  }
  EtcdRegistry::Options options;
  options.client.timer = timer;
  std::string rest = uri.substr(sizeof(kStart) - 1);
  std::string query;
  if (const size_t mark = rest.find('?'); mark != std::string::npos) {
    query = rest.substr(mark + 1);
    rest.resize(mark);
  }
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    std::string prefix = rest.substr(slash);
    rest.resize(slash);
    while (!prefix.empty() && prefix.back() == '/') prefix.pop_back();
    if (!prefix.empty()) options.prefix = std::move(prefix);
  }
  for (const auto part : absl::StrSplit(rest, ',')) {
    absl::StatusOr<Address> address = ParseAddress(std::string(part));
    if (!address.ok()) return address.status();
    std::vector<std::string>& endpoints = options.client.endpoints;
    endpoints.push_back(address->ToString());
    if (std::count(endpoints.begin(), endpoints.end(), endpoints.back()) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("'", std::string(part), "' is there twice"));
    }
  }
  absl::StatusOr<UriOptions> given = ParseOptions(query);
  if (!given.ok()) return given.status();
  if (auto status = SetCredentials(*given, &options); !status.ok()) return status;
  return options;
}

UpstreamScheme EtcdScheme(HashedWheelTimer* timer) {
  return {kEtcdScheme, kEtcdForm,
          [timer](const std::string& uri) -> absl::StatusOr<std::unique_ptr<Registry>> {
            absl::StatusOr<EtcdRegistry::Options> options = ParseEtcdUri(uri, timer);
            if (!options.ok()) return options.status();
            if (timer == nullptr) return std::unique_ptr<Registry>();
            return std::make_unique<EtcdRegistry>(*std::move(options));
          }};
}

}  // namespace failback
