// An HTTP server: the one of the admin endpoint and of the front doors.
//
// It serves handlers by method and path, and has what all of them need in one place: TLS, limits, a
// deadline for each request, who calls, and what a request passes before a handler sees it. What
// the paths mean is for those who add them (daemon/admin/admin_routes.h, gateway/json/json_door.h).
//
// One thread waits for all connections (Boost.Asio and Beast), and runs the handlers. A handler
// that has to wait answers later, from any thread (gateway/http/responder.h), and holds nothing up
// meanwhile: a parked request costs its connection and what the handler keeps. A connection that
// has not sent a whole request within `request_timeout` is closed, however slowly it drips, and so
// is one that does not take its response. Requests that are pipelined are answered one after the
// other, in their order. One handler runs at a turn, and between two of them what has come is
// looked at: connections take turns, however many requests they have sent, and probes go first.
// Beyond `max_connections` a new one takes the place of another, on which no handler is at work:
// the oldest of the address that has the most; where all are at work it waits. So slow clients,
// however many, do not keep out a probe.
//
// What is checked before a handler runs:
// * The request is no longer than allowed, there is one Host header, and at most one way to say how
//   long the body is. A compressed body is refused (415).
// * Options::admit, which identifies the caller and refuses those who may not come.
// * Methods other than those of the path's handlers are refused (405); HEAD is GET without the body.
//
// Example:
//
//   Server::Options options;
//   options.timer = &timer;
//   options.listen = "127.0.0.1:7072";
//   absl::StatusOr<std::unique_ptr<Server>> server = Server::Bind(options);
//   if (!server.ok()) Die(server.status());
//   (*server)->Handle("GET", "/hello/{name}", [](const Request& request, Responder responder) {
//     responder.Send(Response::Text("hello " + request.parameters[0]));
//   });
//   (*server)->Start();
//
// Thread safety: Handle before Start, on one thread; the rest from any thread, but Stop and the
// destructor not from a handler.

#ifndef FAILBACK_GATEWAY_HTTP_SERVER_H_
#define FAILBACK_GATEWAY_HTTP_SERVER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gateway/http/message.h"
#include "gateway/http/responder.h"
#include "gateway/http/router.h"
#include "registry/security/identity.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/histogram.h"

namespace failback {
class ServerTls;
}  // namespace failback

namespace failback::http {

// What the connection of a request shows of its client.
struct Shown {
  // The owner of the client's certificate, which was verified; anonymous: it has none.
  Identity owner = {};
  // That certificate, in PEM.
  std::string certificate = {};
};

class Server {
 public:
  struct Options {
    // Required; it outlives the server, and not by one of its own tasks.
    HashedWheelTimer* timer = nullptr;
    // `HOST:PORT`; port 0: a free one.
    std::string listen;
    // Whether other machines may connect without TLS.
    bool allow_remote = false;
    // Null: nothing is encrypted.
    std::shared_ptr<ServerTls> tls = nullptr;
    // For logs: "admin endpoint".
    std::string name = "HTTP";
    size_t max_connections = 100;
    size_t max_header_bytes = 16 << 10;
    size_t max_body_bytes = 64 << 10;
    // Of a stream's body, that its client has not read.
    size_t max_unread_bytes = 256 << 10;
    // For a whole request, from when the connection began to wait for it.
    absl::Duration request_timeout = absl::Seconds(30);
    // For a client to take what is sent to it: the whole response, or a stream's next chunk.
    absl::Duration response_timeout = absl::Seconds(30);

    // Sets the request's caller, or answers in the handler's place. Null: everybody may come,
    // anonymously. `request->caller` has the client's address and port as its peer.
    std::function<std::optional<Response>(const Shown& shown, Request* request)> admit = nullptr;
    // The response that says an error; null: as text. The server's own errors come through it too.
    std::function<Response(int http_status, const absl::Status& status)> error = nullptr;
    // Sent with each response, unless the response has them itself.
    std::vector<std::pair<std::string, std::string>> headers;
  };

  // 1xx, 2xx, …
  static constexpr size_t kStatusClasses = 5;

  struct Statistics {
    int64_t connections = 0;
    int64_t parked = 0;  // requests that wait for their answer, and streams
    int64_t requests = 0;
    int64_t refused = 0;      // answered before a handler
    int64_t slow_closed = 0;  // connections whose client did not send or read in time
    int64_t made_room = 0;    // closed, or answered early, for another of max_connections
    std::array<int64_t, kStatusClasses> responses{};  // by the class of their status
    // From a whole request to its answer; of a stream not.
    Histogram duration_nanos{kLatencyBoundsNanos};
  };

  // Takes the address. INVALID_ARGUMENT for one that cannot be listened on, or for no timer,
  // FAILED_PRECONDITION for one that is in use.
  static absl::StatusOr<std::unique_ptr<Server>> Bind(Options options);
  ~Server();  // as Stop

  // When a request has its turn: after those that came before it, or, for a probe that costs next
  // to nothing, before all that are no probes.
  enum class Turn { kInOrder, kProbe };

  // Serves `pattern` (gateway/http/router.h) for a method. A probe's has no `{…}`.
  void Handle(const std::string& method, const std::string& pattern, Handler handler,
              Turn turn = Turn::kInOrder);

  // Begins to serve.
  void Start();

  // Answers what waits with 503 (SHUTTING_DOWN), ends streams, and closes all connections. Handlers
  // have ended when it returns; what they answer later is dropped. `gone` has run for all who wait.
  void Stop();

  // `127.0.0.1:7072`, with the port that was chosen.
  const std::string& address() const;

  Statistics Stats() const;

  // Runs tasks on the server's thread, where a Responder answers without a detour: for what answers
  // many at once. What is left when the server has stopped is dropped.
  Executor* executor() const;

 private:
  class Impl;
  explicit Server(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl> impl_;
};

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_SERVER_H_
