// A small HTTP server for people, scrapers and the console: short requests, on loopback.
//
// It serves handlers by method and path, and has what all of them need in one place: limits, a
// deadline for each request, the check of who may change something, and errors as JSON. What the
// paths mean is daemon/admin/admin_routes.h.
//
// One thread waits for all connections (Boost.Asio and Beast), and runs the handlers. A handler
// that has to wait answers later, from any thread, and holds nothing up meanwhile. A connection
// that has not sent a whole request within `request_timeout` is closed, however slowly it drips, so
// it cannot keep its slot. One handler runs at a turn, and between two of them what has come is
// looked at: connections take turns, however many requests they have sent, and probes go first.
// Beyond `max_connections` a new one takes the place of another, on which no handler is at work:
// the oldest of the address that has the most. So slow clients, however many, do not keep out a
// probe.
//
// What is checked before a handler runs:
// * There is one Host header, and at most one way to say how long the body is.
// * The Host header is an IP address, `localhost`, or one of Options::hosts. So a page of another
//   site cannot read anything by pointing its own name here (DNS rebinding).
// * A POST has a JSON body, comes from no other site (Origin, Sec-Fetch-Site), and shows the token
//   of Options::token_file, which is read again each time. Without such a file nothing can be
//   changed.
// * Other methods than those of the path's handlers are refused; HEAD is GET without the body.
//
// Example:
//
//   AdminServer::Options options;
//   options.timer = &timer;
//   options.listen = "127.0.0.1:7071";
//   absl::StatusOr<std::unique_ptr<AdminServer>> server = AdminServer::Bind(options);
//   if (!server.ok()) Die(server.status());
//   (*server)->Handle("GET", "/hello/{name}",
//                     [](const AdminRequest& request, AdminServer::Respond respond) {
//                       std::move(respond)(AdminResponse::Text("hello " + request.parameters[0]));
//                     });
//   (*server)->Start();
//
// Thread safety: Handle before Start, on one thread; the rest from any thread, but Stop and the
// destructor not from a handler.

#ifndef FAILBACK_DAEMON_HTTP_ADMIN_SERVER_H_
#define FAILBACK_DAEMON_HTTP_ADMIN_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/http/admin_message.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class AdminServer {
 public:
  struct Options {
    // Required; it outlives the server, and not by one of its own tasks.
    HashedWheelTimer* timer = nullptr;
    // `HOST:PORT`; port 0: a free one.
    std::string listen;
    // Whether other machines may connect. Nothing is encrypted.
    bool allow_remote = false;
    // Names that the Host header may have, beside IP addresses and `localhost`.
    std::vector<std::string> hosts;
    // The file of the token that a POST needs; empty: no POST is taken.
    std::string token_file;
    size_t max_connections = 100;
    size_t max_header_bytes = 16 << 10;
    size_t max_body_bytes = 64 << 10;
    // For a whole request, from when the connection began to wait for it.
    absl::Duration request_timeout = absl::Seconds(30);
    // For a client to take the whole response.
    absl::Duration response_timeout = absl::Seconds(30);
  };

  // To be called once; dropped without being called it answers with an error.
  using Respond = absl::AnyInvocable<void(AdminResponse) &&>;
  using Handler = std::function<void(const AdminRequest&, Respond)>;

  // Takes the address. INVALID_ARGUMENT for one that cannot be listened on, or for no timer,
  // FAILED_PRECONDITION for one that is in use.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Bind(Options options);
  ~AdminServer();  // as Stop

  // When a request has its turn: after those that came before it, or, for a probe that costs next
  // to nothing, before all that are no probes.
  enum class Turn { kInOrder, kProbe };

  // Serves `pattern` for a method, GET or POST. In a pattern `{…}` stands for any one segment, but
  // not in that of a probe.
  void Handle(const std::string& method, const std::string& pattern, Handler handler,
              Turn turn = Turn::kInOrder);

  // Begins to serve.
  void Start();

  // Closes all connections. Handlers have ended when it returns; what they answer later is dropped.
  void Stop();

  // `127.0.0.1:7071`, with the port that was chosen.
  const std::string& address() const;

 private:
  class Impl;
  explicit AdminServer(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl> impl_;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_HTTP_ADMIN_SERVER_H_
