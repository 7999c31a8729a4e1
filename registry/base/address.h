// Addresses that people type: `127.0.0.1:7070`, `localhost:7070`, `[::1]:7070`, `unix:/run/x.sock`.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_BASE_ADDRESS_H_
#define FAILBACK_REGISTRY_BASE_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace failback {

struct Address {
  // Of a TCP address: a name, or an IP address without brackets. Empty for a Unix socket.
  std::string host;
  int port = 0;
  // Of a Unix socket, absolute or relative. Empty for TCP.
  std::string path;

  bool is_unix() const { return !path.empty(); }
  // As parsed; also what gRPC takes.
  std::string ToString() const;
  // Reached only from this machine: a Unix socket, 127.0.0.0/8, ::1 or `localhost`.
  bool is_local() const;
};

// How a host is written.
enum class HostKind { kIpv4, kIpv6, kName };
HostKind HostKindOf(const std::string& host);

// INVALID_ARGUMENT names `text`, what is wrong and what is allowed. Ports from `min_port` (0 where
// the system may choose one, otherwise 1) to 65535. `unix:/path`, `unix:///path` and `unix:path`
// are Unix sockets; their path is at most 107 bytes.
absl::StatusOr<Address> ParseAddress(const std::string& text, int min_port = 1);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_ADDRESS_H_
