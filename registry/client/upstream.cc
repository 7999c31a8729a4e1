#include "registry/client/upstream.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "registry/base/address.h"

namespace failback {
namespace {

constexpr char kGrpcPrefix[] = "grpc://";

absl::StatusOr<std::unique_ptr<Registry>> NewGrpc(const std::vector<std::string>& texts,
                                                  const GrpcRegistryOptions& options) {
  std::vector<std::string> addresses;
  for (const std::string& text : texts) {
    absl::StatusOr<Address> address = ParseAddress(text);
    if (!address.ok()) return address.status();
    addresses.push_back(address->ToString());
    const auto& security = options.channel.security;
    if (security != nullptr && security->has_token() && !security->encrypted() &&
        !address->is_local()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the token would go to '", text,
          "' in plain text; use TLS (a file of authorities), or an address on this machine"));
    }
    if (std::count(addresses.begin(), addresses.end(), addresses.back()) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is there twice"));
    }
  }
  return std::make_unique<GrpcRegistry>(std::move(addresses), options);
}

std::vector<UpstreamScheme> AllSchemes(const UpstreamOptions& options) {
  std::vector<UpstreamScheme> schemes = {
      {"grpc", "grpc://host:port[,host:port...]",
       [&options](const std::string& uri) -> absl::StatusOr<std::unique_ptr<Registry>> {
         if (!absl::StartsWith(uri, kGrpcPrefix)) {
           return absl::InvalidArgumentError("'//' is missing after 'grpc:'");
         }
         return NewGrpc(absl::StrSplit(uri.substr(sizeof(kGrpcPrefix) - 1), ','), options.grpc);
       }},
      {"unix", "unix:/path",
       [&options](const std::string& uri) { return NewGrpc({uri}, options.grpc); }},
  };
  schemes.insert(schemes.end(), options.schemes.begin(), options.schemes.end());
  return schemes;
}

}  // namespace

absl::StatusOr<NamedUri> ParseNamedUri(const std::string& text) {
  // A scheme ends with a colon, so an equals sign before the first one ends a name.
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals > text.find(':')) return NamedUri{text, text};
  if (equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "': the name before '=' is missing; allowed are NAME=URI and URI"));
  }
  return NamedUri{text.substr(0, equals), text.substr(equals + 1)};
}

absl::StatusOr<std::unique_ptr<Registry>> NewUpstream(const std::string& uri,
                                                      const UpstreamOptions& options) {
  std::vector<std::string> forms;
  absl::Status problem;
  for (const UpstreamScheme& scheme : AllSchemes(options)) {
    forms.push_back(scheme.form);
    if (!absl::StartsWith(uri, scheme.name + ":")) continue;
    absl::StatusOr<std::unique_ptr<Registry>> registry = scheme.make(uri);
    if (registry.ok() || !absl::IsInvalidArgument(registry.status())) return registry;
    problem = registry.status();
  }
  const std::string what =
      !problem.ok() ? std::string(problem.message()) : std::string("the scheme is not known");
  return absl::InvalidArgumentError(absl::StrCat("registry URI '", uri, "': ", what,
                                                 "; allowed are ", absl::StrJoin(forms, ", ")));
}

}  // namespace failback
