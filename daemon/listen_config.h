// The `listen` key, which both daemons have.

#ifndef FAILBACK_DAEMON_LISTEN_CONFIG_H_
#define FAILBACK_DAEMON_LISTEN_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/config.h"

namespace failback {

// Checks the addresses, without opening any: each can be parsed, and is local unless
// `allow_remote`: calls are encrypted, or plain text was allowed by name.
absl::Status ValidateListen(const std::vector<std::string>& listen, bool allow_remote,
                            const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_DAEMON_LISTEN_CONFIG_H_
