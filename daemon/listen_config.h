// The keys `listen` and `socket`, which both daemons have, and names of hosts.

#ifndef FAILBACK_DAEMON_LISTEN_CONFIG_H_
#define FAILBACK_DAEMON_LISTEN_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "failback/config/v1/config.pb.h"
#include "registry/base/listen.h"

namespace failback {

// Checks the addresses, without opening any: each can be parsed, and is local unless
// `allow_remote`: calls are encrypted, or plain text was allowed by name.
absl::Status ValidateListen(const std::vector<std::string>& listen, bool allow_remote,
                            const ConfigLoader& loader);

// The options of the sockets: mode, and owner and group looked up on this machine.
absl::StatusOr<ListenOptions> ToListenOptions(const config::v1::Socket& socket, bool allow_remote,
                                              const ConfigLoader& loader);

// The names of `key` by which clients call a listener: each is one name, without a port.
absl::Status ValidateHosts(const std::string& key, const std::vector<std::string>& hosts,
                           const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_DAEMON_LISTEN_CONFIG_H_
