// The keys with which a program proves to a registry who it is.

#ifndef FAILBACK_DAEMON_CLIENT_SECURITY_CONFIG_H_
#define FAILBACK_DAEMON_CLIENT_SECURITY_CONFIG_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "failback/config/v1/config.pb.h"
#include "registry/security/client_security.h"

namespace failback {

// Reads the files that `tls`, at the key `tls_key`, and `token_file` name. Null when nothing is
// set. An error names the place, the key, the file and what is allowed.
absl::StatusOr<std::shared_ptr<ClientSecurity>> LoadClientSecurity(const config::v1::ClientTls& tls,
                                                                   const std::string& tls_key,
                                                                   const std::string& token_file,
                                                                   const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_DAEMON_CLIENT_SECURITY_CONFIG_H_
