// The file that shows a gRPC client where its discovery server is: `GRPC_XDS_BOOTSTRAP` names it.
//
// Thread safety: all functions from any thread; two that write the same path at once leave one of
// both files, whole.

#ifndef FAILBACK_GATEWAY_XDS_BOOTSTRAP_H_
#define FAILBACK_GATEWAY_XDS_BOOTSTRAP_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace failback::xds {

struct Bootstrap {
  // Of the discovery server, as gRPC takes it: `unix:/run/failback/agent.sock`, `127.0.0.1:7060`.
  std::string server_uri;
  // Names the client to the server; shown where it refuses something.
  std::string node_id;
  // The failure domain that the client is in; may be empty.
  std::string zone;
};

// Of the addresses that a server listens on the one for clients on the same machine: a Unix socket
// before a loopback port before anything else. Empty when there is none.
std::string ChooseServerUri(const std::vector<std::string>& addresses);

std::string BootstrapJson(const Bootstrap& bootstrap);

// Writes the file so that a reader finds the old one or the new one, whole, and any user may read
// it. FAILED_PRECONDITION names the path and what is wrong.
absl::Status WriteBootstrap(const Bootstrap& bootstrap, const std::string& path);

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_BOOTSTRAP_H_
