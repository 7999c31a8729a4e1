// Addresses to listen on, made safe before gRPC gets them.
//
// gRPC by itself shares a TCP port that is in use, takes over the Unix socket of a running process
// without a word, and reports a failure to bind as "no". A ListenAddress checks first, says what is
// wrong, and holds a lock file beside a Unix socket (`<path>.lock`) for as long as the server
// lives.
//
//   absl::StatusOr<ListenAddress> listen = ListenAddress::Prepare("127.0.0.1:0", ListenOptions());
//   builder.AddListeningPort(listen->grpc_address(), credentials, &port);
//   server = builder.BuildAndStart();
//   absl::Status status = listen->Started(port);
//   Say("listening on ", listen->text());
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_LISTEN_H_
#define FAILBACK_REGISTRY_LISTEN_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/address.h"
#include "registry/file_lock.h"

namespace failback {

struct ListenOptions {
  // Whether an address that other machines reach is allowed without TLS.
  bool allow_remote_plaintext = false;
  // Access to a Unix socket: who may write may call.
  mode_t socket_mode = 0660;
  // Whose it is; unset: who runs the process. Another needs permission to give files away.
  std::optional<uid_t> socket_owner;
  std::optional<gid_t> socket_group;
};

// A socket that keeps a port from others until a server listens there. Owns the descriptor.
class PlaceHolder {
 public:
  explicit PlaceHolder(int fd) : fd_(fd) {}
  PlaceHolder(PlaceHolder&& other) noexcept;
  PlaceHolder& operator=(PlaceHolder&&) = delete;
  ~PlaceHolder();

  int fd() const { return fd_; }

 private:
  int fd_;
};

class ListenAddress {
 public:
  // Checks `text`, as host:port (port 0: the system chooses), [ipv6]:port or unix:/path.
  // A port 0 is replaced by one that is free at all addresses that a name stands for.
  // INVALID_ARGUMENT when it is no address to listen on, FAILED_PRECONDITION when something else
  // listens there. Removes the socket that a dead process has left.
  static absl::StatusOr<ListenAddress> Prepare(const std::string& text,
                                               const ListenOptions& options);

  // What gRPC takes.
  std::string grpc_address() const { return address_.ToString(); }

  // The server listens, and `port` is what gRPC told (0: it could not). Sets a socket's owner,
  // group and mode.
  absl::Status Started(int port);

  // With the port that was chosen, as clients take it.
  std::string text() const { return address_.ToString(); }
  const Address& address() const { return address_; }

 private:
  absl::Status GiveSocket() const;

  Address address_;
  ListenOptions options_;
  std::vector<PlaceHolder> places_;  // until the server has started
  std::optional<FileLock> lock_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_LISTEN_H_
