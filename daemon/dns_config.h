// The keys `dns` of both daemons, and the DNS server that they ask for.

#ifndef FAILBACK_DAEMON_DNS_CONFIG_H_
#define FAILBACK_DAEMON_DNS_CONFIG_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "failback/config/v1/config.pb.h"
#include "gateway/dns/dns_server.h"
#include "registry/security/access_control.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// Checks the keys, without opening anything. `knows_callers`: there is a policy, or there are known
// tokens.
absl::Status ValidateDnsConfig(const config::v1::Dns& config, bool knows_callers,
                               const ConfigLoader& loader);
template <typename Config>
absl::Status ValidateDnsOf(const Config& config, const ConfigLoader& loader) {
  const bool knows_callers = !config.policy_file().empty() || !config.known_tokens_file().empty();
  return ValidateDnsConfig(config.dns(), knows_callers, loader);
}

// What a daemon brings along.
struct DnsSources {
  HashedWheelTimer* timer = nullptr;
  std::shared_ptr<AccessControl> access = nullptr;  // null: everybody everything
  std::string zone = {};                            // of the daemon, for priorities; empty: none
  size_t max_services = 0;                          // beside the key's own; 0: no limit
  // As DnsServer::Options has it.
  decltype(dns::DnsServer::Options::not_registered) not_registered = nullptr;
};

// Takes the addresses. Null when DNS is not asked for.
absl::StatusOr<std::unique_ptr<dns::DnsServer>> BindDns(const config::v1::Dns& config,
                                                        const DnsSources& sources,
                                                        const ConfigLoader& loader);

// ", dns 127.0.0.1:7073", or nothing: for the line that says where a daemon is reached.
std::string DnsPlaces(const dns::DnsServer* server);

}  // namespace failback

#endif  // FAILBACK_DAEMON_DNS_CONFIG_H_
