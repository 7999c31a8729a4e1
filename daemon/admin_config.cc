#include "daemon/admin_config.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/admin/admin_guard.h"
#include "daemon/listen_config.h"
#include "registry/base/address.h"
#include "registry/base/log.h"

namespace failback {
namespace {

constexpr char kKey[] = "admin.listen";

}  // namespace

absl::Status ValidateAdminConfig(const config::v1::Admin& config, const ConfigLoader& loader) {
  if (!config.token_file().empty()) {
    if (auto token = ReadAdminToken(config.token_file()); !token.ok()) {
      return loader.ErrorAt("admin.token_file", std::string(token.status().message()));
    }
  }
  const std::vector<std::string> hosts = {config.hosts().begin(), config.hosts().end()};
  if (absl::Status status = ValidateHosts("admin.hosts", hosts, loader); !status.ok()) {
    return status;
  }
  if (config.listen().empty()) return absl::OkStatus();
  const absl::StatusOr<Address> address = ParseAddress(config.listen(), /*min_port=*/0);
  if (!address.ok()) return loader.ErrorAt(kKey, std::string(address.status().message()));
  if (address->is_unix()) {
    return loader.ErrorAt(
        kKey, absl::StrCat("'", config.listen(), "' is a Unix socket; allowed is HOST:PORT"));
  }
  if (!address->is_local() && !config.allow_remote()) {
    return loader.ErrorAt(kKey, absl::StrCat("other machines can connect to ", config.listen(),
                                             ", and it is not encrypted; listen on a loopback "
                                             "address, or set admin.allow_remote"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<http::Server>> BindAdmin(const config::v1::Admin& config,
                                                        const std::string& default_listen,
                                                        HashedWheelTimer* timer,
                                                        const ConfigLoader& loader) {
  if (config.has_listen() && config.listen().empty()) return nullptr;
  http::Server::Options options;
  options.timer = timer;
  options.listen = config.has_listen() ? config.listen() : default_listen;
  options.allow_remote = config.allow_remote();
  GuardAdmin({config.hosts().begin(), config.hosts().end()}, config.token_file(), &options);
  absl::StatusOr<std::unique_ptr<http::Server>> server = http::Server::Bind(std::move(options));
  if (server.ok()) return server;
  if (config.has_listen()) return loader.ErrorAt(kKey, std::string(server.status().message()));
  Log(LogLevel::kWarning, "no admin endpoint",
      {{"error", std::string(server.status().message())},
       {"help", "name another address with --admin, or --admin '' for none"}});
  return nullptr;
}

}  // namespace failback
