// Addresses to listen on, and the sockets that do.
//
// gRPC by itself shares a TCP port that is in use, takes over the Unix socket of a running process
// without a word, and reports a failure to bind as "no". A ListenAddress checks first, says what is
// wrong, and holds a lock file beside a Unix socket (`<path>.lock`) for as long as it lives.
//
//   absl::StatusOr<ListenAddress> listen = ListenAddress::Prepare("127.0.0.1:0", ListenOptions());
//   … it accepts no connection yet, and no other process can take the address …
//   absl::StatusOr<std::vector<int>> sockets = listen->Listen();
//   Say("listening on ", listen->text());
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_BASE_LISTEN_H_
#define FAILBACK_REGISTRY_BASE_LISTEN_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/base/address.h"
#include "registry/base/file_lock.h"

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

// A socket that is bound to an address. Owns the descriptor, and the name of a Unix socket.
class BoundSocket {
 public:
  // `path` is removed when the socket is closed; empty: none.
  explicit BoundSocket(int fd, std::string path = "") : fd_(fd), path_(std::move(path)) {}
  BoundSocket(BoundSocket&& other) noexcept;
  BoundSocket& operator=(BoundSocket&&) = delete;
  ~BoundSocket();

  int fd() const { return fd_; }

 private:
  int fd_;
  const std::string path_;
};

class ListenAddress {
 public:
  // Checks `text`, as host:port (port 0: the system chooses), [ipv6]:port or unix:/path.
  // A port 0 is replaced by one that is free at all addresses that a name stands for.
  // INVALID_ARGUMENT when it is no address to listen on, FAILED_PRECONDITION when something else
  // listens there. Removes the socket that a dead process has left.
  static absl::StatusOr<ListenAddress> Prepare(const std::string& text,
                                               const ListenOptions& options);

  // Lets clients connect, a Unix socket's after its owner, group and mode are set. To be called
  // once. Returns what listens: one non-blocking socket for each address that a name stands for,
  // open until Close().
  absl::StatusOr<std::vector<int>> Listen();

  // Accepts no connection any more. The destructor does so too.
  void Close() { sockets_.clear(); }

  // With the port that was chosen, as clients take it.
  std::string text() const { return address_.ToString(); }
  const Address& address() const { return address_; }

 private:
  absl::Status BindUnix();
  absl::Status GiveSocket() const;

  Address address_;
  ListenOptions options_;
  std::optional<FileLock> lock_;  // longer than the socket that it guards
  std::vector<BoundSocket> sockets_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_LISTEN_H_
