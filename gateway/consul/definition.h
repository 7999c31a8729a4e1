// What a Consul client registers: a service with its checks, or a check.
//
// Clients write the names of fields in several ways, and durations as text ("10s") or as
// nanoseconds. What this door does not do is refused, and named with what it does: script and
// Docker checks, sidecars and proxies, tagged addresses.
//
// Example:
//
//   absl::StatusOr<ServiceDefinition> service = ParseService(request.body);
//   if (!service.ok()) return Refuse(service.status());     // Check.Args: is not supported; …
//
// Thread safety: plain values; the functions are pure.

#ifndef FAILBACK_GATEWAY_CONSUL_DEFINITION_H_
#define FAILBACK_GATEWAY_CONSUL_DEFINITION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace failback::consul {

// Of one check, and of an instance as a whole.
enum class CheckStatus { kPassing, kWarning, kCritical };

// "passing"; nullopt for no status. Clients say "pass", "warn", "fail" in paths.
const char* StatusName(CheckStatus status);
std::optional<CheckStatus> ParseStatus(std::string_view name);

struct CheckDefinition {
  enum class Kind { kTtl, kHttp, kTcp, kGrpc };

  std::string id;  // empty: the default one
  std::string name;
  std::string notes;
  std::string service_id;  // of a check that is registered by itself
  Kind kind = Kind::kTtl;
  // Before the first report or probe.
  CheckStatus status = CheckStatus::kCritical;
  absl::Duration ttl;  // of kTtl
  // Of the others: where, how often, and how long it may take.
  std::string target;  // a URL, `HOST:PORT`, or `HOST:PORT/SERVICE`
  absl::Duration interval;
  absl::Duration timeout;  // zero: not given
  std::string method;      // of kHttp; empty: GET
  bool tls = false;        // of kGrpc
  bool tls_skip_verify = false;
  std::string tls_server_name;
  std::vector<std::pair<std::string, std::string>> headers;  // of kHttp
  uint32_t passes = 1;                                       // in a row, until it is passing
  uint32_t failures = 1;                                     // in a row, until it is critical
  // Of a service that has been critical for so long; zero: never.
  absl::Duration deregister_after;
};

const char* KindName(CheckDefinition::Kind kind);

struct ServiceDefinition {
  std::string id;  // the name, if none is given
  std::string name;
  std::string address;  // empty: the agent's
  uint32_t port = 0;
  std::vector<std::string> tags;
  std::map<std::string, std::string> meta;
  std::optional<uint32_t> weight;
  std::string zone;
  std::vector<CheckDefinition> checks;
};

// Of PUT /v1/agent/service/register and /v1/agent/check/register. INVALID_ARGUMENT names the field.
absl::StatusOr<ServiceDefinition> ParseService(std::string_view body);
absl::StatusOr<CheckDefinition> ParseCheck(std::string_view body);

// Of PUT /v1/agent/check/update/{id}.
struct CheckUpdate {
  CheckStatus status = CheckStatus::kCritical;
  std::string output;
};
absl::StatusOr<CheckUpdate> ParseCheckUpdate(std::string_view body);

// As Go writes durations: "10s", "1m30s", "1.5h". INVALID_ARGUMENT for another text, for one that is
// negative, and for more than a year.
absl::StatusOr<absl::Duration> ParseGoDuration(const std::string& field, const std::string& text);

// More of them are refused.
inline constexpr size_t kMaxChecks = 16;
inline constexpr size_t kMaxTags = 256;

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_DEFINITION_H_
