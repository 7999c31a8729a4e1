#include "gateway/door/shown_token.h"

#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace failback {
namespace {

// The password of `Basic`; empty where it is not that, or cannot be read.
std::string PasswordOf(std::string_view authorization) {
  constexpr std::string_view kBasic = "Basic ";
  const absl::string_view shown(authorization.data(), authorization.size());
  if (!absl::StartsWithIgnoreCase(shown, absl::string_view(kBasic.data(), kBasic.size()))) {
    return "";
  }
  std::string pair;
  if (!absl::Base64Unescape(shown.substr(kBasic.size()), &pair)) return "";
  const size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : pair.substr(colon + 1);
}

}  // namespace

std::string BearerOf(const http::Request& request, TokenPlaces places) {
  std::string token;
  if (places == TokenPlaces::kConsul) {
    token = std::string(request.Header("X-Consul-Token"));
    if (token.empty()) token = request.Query("token");
  }
  const std::string_view authorization = request.Header("Authorization");
  if (token.empty()) token = PasswordOf(authorization);
  return token.empty() ? std::string(authorization) : absl::StrCat("Bearer ", token);
}

}  // namespace failback
