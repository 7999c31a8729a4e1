#include "daemon/dns_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "gateway/dns/names.h"
#include "registry/base/address.h"
#include "registry/base/proto_time.h"

namespace failback {

absl::Status ValidateDnsConfig(const config::v1::Dns& config, bool knows_callers,
                               const ConfigLoader& loader) {
  for (int i = 0; i < config.listen_size(); ++i) {
    const std::string& text = config.listen(i);
    const std::string key = absl::StrCat("dns.listen[", i, "]");
    const absl::StatusOr<Address> address = ParseAddress(text, /*min_port=*/0);
    if (!address.ok()) {
      // Here no socket of Unix is allowed.
      return loader.ErrorAt(
          key, absl::StrReplaceAll(std::string(address.status().message()),
                                   {{", [ipv6]:port and unix:/path", " and [ipv6]:port"}}));
    }
    if (address->is_unix()) {
      return loader.ErrorAt(key,
                            absl::StrCat("'", text, "' is a Unix socket; allowed is HOST:PORT"));
    }
    if (!address->is_local() && !config.allow_remote()) {
      return loader.ErrorAt(
          key, absl::StrCat("other machines can ask ", text,
                            "; listen on a loopback address, or set dns.allow_remote"));
    }
  }
  if (const auto domain = dns::Domain::Parse(config.domain()); !domain.ok()) {
    return loader.ErrorAt("dns.domain", std::string(domain.status().message()));
  }
  const absl::Duration ttl = FromProto(config.ttl());
  if (ttl != absl::Trunc(ttl, absl::Seconds(1))) {
    return loader.ErrorAt(
        "dns.ttl", absl::StrCat("'", absl::FormatDuration(ttl), "' is no whole number of seconds"));
  }
  if (!config.read_as().empty() && !knows_callers) {
    return loader.ErrorAt("dns.read_as",
                          "needs policy_file or known_tokens_file: without them everybody may read "
                          "everything");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<dns::DnsServer>> BindDns(const config::v1::Dns& config,
                                                        const DnsSources& sources,
                                                        const ConfigLoader& loader) {
  if (config.listen_size() == 0) return nullptr;
  dns::DnsServer::Options options{dns::Zone{dns::Domain::Parse(config.domain()).value()}};
  options.zone.ttl = static_cast<uint32_t>(absl::ToInt64Seconds(FromProto(config.ttl())));
  options.zone.max_udp_bytes = static_cast<uint16_t>(config.max_udp_bytes());
  options.listen = {config.listen().begin(), config.listen().end()};
  options.allow_remote = config.allow_remote();
  options.access = sources.access;
  if (!config.read_as().empty()) {
    options.reader.kind = Identity::Kind::kCertificate;
    options.reader.names = {config.read_as()};
  }
  options.responses_per_second = config.responses_per_second();
  options.max_connections = config.max_connections();
  options.table.timer = sources.timer;
  options.not_registered = sources.not_registered;
  options.table.records.zone = sources.zone;
  options.table.records.unhealthy_if_no_others = config.unhealthy_if_no_others();
  options.table.max_services = config.max_services();
  if (sources.max_services > 0) {
    options.table.max_services = std::min(options.table.max_services, sources.max_services);
  }
  absl::StatusOr<std::unique_ptr<dns::DnsServer>> server = dns::DnsServer::Bind(options);
  if (server.ok()) return server;
  return loader.ErrorAt("dns.listen", std::string(server.status().message()));
}

std::string DnsPlaces(const dns::DnsServer* server) {
  return server == nullptr ? ""
                           : absl::StrCat(", dns ", absl::StrJoin(server->addresses(), " and "));
}

}  // namespace failback
