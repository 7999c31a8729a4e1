// Accepts connections for a server that would not come back from being out of file descriptors.
//
// gRPC stops listening for good when an accept fails (up to 1.51 at least): a server that has once
// run out of descriptors is deaf until it is restarted, although its clients have disconnected by
// then. Here no error ends the listening. And it does not come to that: of the descriptors that the
// process may have, some are kept for what is not a connection, as files of the store and of
// operators. A connection beyond is closed at once, so that its client need not wait to find out.
//
// Descriptors are not counted: the kernel gives the lowest number that is free, so that of a new
// connection shows how many are in use.
//
//   ConnectionAcceptor::Options options;
//   options.listeners = {{socket, [](int listener, int fd) { Serve(fd); }}};
//   auto acceptor = ConnectionAcceptor::Start(std::move(options));
//
// Thread safety: thread-compatible. Callbacks run on the acceptor's own thread.

#ifndef FAILBACK_REGISTRY_SERVER_CONNECTION_ACCEPTOR_H_
#define FAILBACK_REGISTRY_SERVER_CONNECTION_ACCEPTOR_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/base/steady_time.h"

namespace failback {

class ConnectionAcceptor {
 public:
  struct Listener {
    // Listens, does not block, and outlives the acceptor.
    int fd = -1;
    // Takes a connection, which does not block either, and the ownership of its descriptor.
    std::function<void(int listener_fd, int fd)> take;
  };

  struct Options {
    std::vector<Listener> listeners;
    // Called for each connection that was closed for want of descriptors.
    std::function<void()> on_refused = [] {};
    // A TCP connection ends when what was sent there is not acknowledged for so long.
    absl::Duration unacknowledged_timeout = absl::Seconds(10);
  };

  // UNAVAILABLE: there is no descriptor left even for this.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Start(Options options);

  // When it has returned no connection is taken any more.
  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;

 private:
  ConnectionAcceptor(Options options, int stop_fd);

  void Run();
  // Takes all that wait. False: for now no connection can be accepted.
  bool AcceptAll(const Listener& listener);
  void Refuse(int fd);
  // For at most `time`; true when the acceptor is to end.
  bool Stopped(absl::Duration time) const;

  const Options options_;
  const int stop_fd_;
  SteadyTime logged_ = SteadyPast();
  std::thread thread_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_CONNECTION_ACCEPTOR_H_
