#include "registry/base/address.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace failback {
namespace {

constexpr char kUnixScheme[] = "unix:";
constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;

absl::Status Invalid(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", absl::Utf8SafeCEscape(text), "' is no address: ", what,
                   "; allowed are host:port, [ipv6]:port and unix:/path"));
}

absl::StatusOr<Address> ParseUnix(const std::string& text) {
  Address address;
  address.path = text.substr(sizeof(kUnixScheme) - 1);
  if (absl::StartsWith(address.path, "//")) {
    address.path.erase(0, 2);
    if (!absl::StartsWith(address.path, "/")) {
      return Invalid(text, "unix:// takes an absolute path, as unix:///run/x.sock");
    }
    // Further slashes mean nothing, and would be taken for those when it is printed again.
    while (absl::StartsWith(address.path, "//")) address.path.erase(0, 1);
  }
  if (address.path.empty()) return Invalid(text, "the path is missing");
  if (address.path.size() > kMaxPath) {
    return Invalid(text, absl::StrCat("a socket's path has at most ", kMaxPath, " bytes, this has ",
                                      address.path.size()));
  }
  return address;
}

}  // namespace

std::string Address::ToString() const {
  if (is_unix()) return absl::StrCat(kUnixScheme, path);
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool Address::is_local() const {
  if (is_unix() || host == "localhost" || host == "::1") return true;
  // As a number: `127.example.com` is a name like any other.
  return HostKindOf(host) == HostKind::kIpv4 && absl::StartsWith(host, "127.");
}

HostKind HostKindOf(const std::string& host) {
  in6_addr number;
  if (inet_pton(AF_INET, host.c_str(), &number) == 1) return HostKind::kIpv4;
  return inet_pton(AF_INET6, host.c_str(), &number) == 1 ? HostKind::kIpv6 : HostKind::kName;
}

absl::StatusOr<Address> ParseAddress(const std::string& text, int min_port) {
  if (absl::StartsWith(text, kUnixScheme)) return ParseUnix(text);
  if (text.empty()) return Invalid(text, "it is empty");
  if (const size_t scheme = text.find("://"); scheme != std::string::npos) {
    return Invalid(text, absl::StrCat("it begins with '",
                                      absl::Utf8SafeCEscape(text.substr(0, scheme)), "://'"));
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return Invalid(text, "the port is missing");
  Address address;
  address.host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  if (address.host.size() >= 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return Invalid(text, "an IPv6 address goes in brackets, as [::1]:7070");
  }
  if (address.host.empty()) return Invalid(text, "the host is missing");
  if (address.host.find_first_of("/[]@?#,") != std::string::npos ||
      !std::all_of(address.host.begin(), address.host.end(),
                   [](unsigned char c) { return absl::ascii_isgraph(c) || c >= 0x80; })) {
    return Invalid(text, absl::StrCat("'", absl::Utf8SafeCEscape(address.host), "' is no host"));
  }
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || port.size() > 5 || !absl::SimpleAtoi(port, &address.port) ||
      address.port < min_port || address.port > 65535) {
    return Invalid(text, absl::StrCat("port '", absl::Utf8SafeCEscape(port), "' is not in ",
                                      min_port, "..65535"));
  }
  return address;
}

}  // namespace failback
