// The keys of both daemons that say where they are reached: `admin` here, `listen` and `socket` in
// daemon/listen_config.h.

#ifndef FAILBACK_DAEMON_ADMIN_CONFIG_H_
#define FAILBACK_DAEMON_ADMIN_CONFIG_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "daemon/listen_config.h"
#include "failback/config/v1/config.pb.h"
#include "gateway/http/server.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

inline constexpr char kRegistryAdminListen[] = "127.0.0.1:7071";
inline constexpr char kAgentAdminListen[] = "127.0.0.1:7061";

// Checks the keys, without opening anything.
absl::Status ValidateAdminConfig(const config::v1::Admin& config, const ConfigLoader& loader);

// Checks all keys of either daemon's configuration that say where it is reached.
template <typename Config>
absl::Status ValidateAddresses(const Config& config, const ConfigLoader& loader) {
  const bool encrypted = !config.tls().cert().empty();
  absl::Status status = ValidateListen({config.listen().begin(), config.listen().end()},
                                       config.allow_remote_plaintext() || encrypted, loader);
  if (status.ok()) {
    status = ToListenOptions(config.socket(), /*allow_remote=*/false, loader).status();
  }
  return status.ok() ? ValidateAdminConfig(config.admin(), loader) : status;
}

// Takes the address, or `default_listen` if none is named. Null when there is nothing to serve: it
// is switched off, or the default address is in use, which is logged. An address that is named has
// to be free.
absl::StatusOr<std::unique_ptr<http::Server>> BindAdmin(const config::v1::Admin& config,
                                                        const std::string& default_listen,
                                                        HashedWheelTimer* timer,
                                                        const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_DAEMON_ADMIN_CONFIG_H_
