// One connection of an HTTP server: it reads requests, waits for their answers, and writes them.
// Internal to Server.
//
// It is always in one stage. A read is under way in each of them, so that a client that leaves is
// noticed while its request is parked; what a client sends ahead is kept up to a header's size, and
// then not read. There is one deadline, for what the stage waits for; the timeout on the wheel is
// put off when it is due, and not at each change.
//
//   kHandshake ─▶ kReading ─▶ kQueued ─▶ kServing ─▶ kWriting ─▶ kReading …
//                                            └────▶ kStreaming ─▶ kReading …
//   each, after an error of the client's: kWriting ─▶ kLingering ─▶ kClosed
//
// Thread safety: all on the server's thread, but Post… of the exchange (connection.cc).

#ifndef FAILBACK_GATEWAY_HTTP_CONNECTION_H_
#define FAILBACK_GATEWAY_HTTP_CONNECTION_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"
#include "gateway/http/message.h"
#include "gateway/http/request_checks.h"
#include "gateway/http/responder.h"
#include "gateway/http/response_head.h"
#include "gateway/http/server.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/histogram.h"

namespace failback::http {

class Connection;

// What a connection asks of its server. Outlives the connections.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  virtual const Server::Options& options() const = 0;
  virtual boost::asio::io_context& context() = 0;
  // A whole request has come: Serve is called at its turn.
  virtual void Queue(std::shared_ptr<Connection> connection, std::string_view path) = 0;
  // Calls a handler, or answers itself.
  virtual void Dispatch(const ParsedRequest& request, Connection* connection,
                        Responder responder) = 0;
  virtual void Closed(Connection* connection) = 0;
  // The response that says an error.
  Response Error(int http_status, const absl::Status& status) const;

  struct Counters {
    std::atomic<int64_t> connections{0}, parked{0}, requests{0}, refused{0}, slow_closed{0};
    std::atomic<int64_t> made_room{0};
    std::array<std::atomic<int64_t>, Server::kStatusClasses> responses{};
    AtomicHistogram duration_nanos{kLatencyBoundsNanos};

    void CountResponse(int http_status) {
      const auto place = static_cast<size_t>(std::clamp(http_status / 100, 1, 5) - 1);
      responses[place].fetch_add(1, std::memory_order_relaxed);
    }
  };
  Counters& counters() { return counters_; }

 private:
  Counters counters_;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Endpoint = boost::asio::ip::tcp::endpoint;
  using ErrorCode = boost::system::error_code;

  // `tls` null: plain. `number`: in the order of their coming.
  Connection(std::shared_ptr<ConnectionOwner> owner, Socket socket,
             std::shared_ptr<boost::asio::ssl::context> tls, uint64_t number);
  ~Connection();

  void Start();
  // The turn of its request has come.
  void Serve();
  // Closes at once; whoever waits for its client is notified.
  void Close();
  // The same, once a request that waits has been answered with `status`, and a stream has ended: the
  // server stops.
  void Shutdown(const absl::Status& status);
  // Ends the wait of a parked request early, so that its place is free soon. False: it has none.
  bool EndWait();

  // Sent with the answer to the request that is dispatched.
  void AddHeaders(HeaderList headers) {
    if (!headers.empty()) extra_headers_ = std::make_unique<HeaderList>(std::move(headers));
  }

  uint64_t number() const { return number_; }
  const Endpoint& endpoint() const { return endpoint_; }
  // It waits for its client, be it for a request or for the end of a response, or for its turn.
  bool may_close() const { return stage_ != Stage::kServing && stage_ != Stage::kStreaming; }
  bool may_end_wait() const { return stage_ == Stage::kServing && expired_ != nullptr; }
  bool closed() const { return stage_ == Stage::kClosed; }
  // "ipv4:10.0.0.7:40112".
  std::string peer() const;
  // Of TLS; an empty one without.
  const Shown& shown() const;

 private:
  enum class Stage : uint8_t {
    kHandshake,
    kReading,
    kQueued,
    kServing,  // a handler works, or has parked the request
    kWriting,
    kStreaming,  // the head of a stream has been sent, or is being
    kLingering,  // the last response is sent; what the client still sends is thrown away
    kClosed,
  };
  class Handle;
  class Link;
  class Stream;
  // What threads other than the server's see of a stream.
  struct StreamState {
    std::atomic<size_t> unread{0};
    std::atomic<bool> over{false};
  };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Chunk = std::shared_ptr<const std::string>;
  using Tls = boost::asio::ssl::stream<Socket&>;

  // --- Reading.
  void BeginRequest();
  // Reads on, unless that is under way, or enough is kept.
  void Pump();
  void OnBytes(const ErrorCode& error, size_t bytes);
  void OnClientLeft(const ErrorCode& error);
  // Feeds the parser with what has come.
  void Parse();
  void OnParseError(const ErrorCode& error);
  void SendContinue();
  void WholeRequest();
  // Answers what is wrong with a request, and closes: where the next one begins is not certain.
  void Reject(int http_status, const absl::Status& status);

  // --- Answering (connection_answer.cc). `request`: the number of the request that is answered; an old one is ignored.
  Responder NewResponder();
  void Answer(uint64_t request, Response response);
  void SetGone(uint64_t request, absl::AnyInvocable<void() &&> gone);
  void SetWait(uint64_t request, absl::Duration wait, absl::AnyInvocable<Response() &&> answer);
  void EndParking();
  void PutExtraHeaders(Response* response) const;
  void Write(Response response);
  void OnWritten(const ErrorCode& error);

  // --- Streaming (likewise).
  void BeginStream(uint64_t request, Response head, std::shared_ptr<StreamState> state);
  void AddChunk(uint64_t request, Chunk chunk);
  void EndStream(uint64_t request);
  void SetDrained(uint64_t request, absl::AnyInvocable<void() &&> drained);
  // Writes what waits, unless a write is under way.
  void WriteChunks();
  void OnChunksWritten(const ErrorCode& error, size_t bytes_of_chunks);

  void NextRequest();
  void Linger();

  // --- Time.
  void SetDeadline(absl::Duration delay);
  void NoDeadline();
  void OnDue();

  template <typename Buffers, typename Handler>
  void AsyncWrite(const Buffers& buffers, Handler handler);

  const uint64_t number_;
  const std::shared_ptr<ConnectionOwner> owner_;
  Socket socket_;
  Endpoint endpoint_;
  std::shared_ptr<boost::asio::ssl::context> tls_context_;
  std::unique_ptr<Tls> tls_;
  std::unique_ptr<Shown> shown_;
  Stage stage_ = Stage::kHandshake;
  bool reading_ = false;
  bool client_left_ = false;  // it sends nothing more
  // Of the request.
  bool keep_alive_ = false;
  bool is_head_ = false;
  bool http10_ = false;
  bool continue_sent_ = false;
  bool parked_ = false;     // it counts as such
  bool linger_ = false;     // after the response
  bool chunked_ = false;    // the stream
  bool ending_ = false;     // likewise
  bool last_sent_ = false;  // its end
  bool shut_down_ = false;  // the server stops
  bool writing_ = false;
  size_t thrown_away_ = 0;  // bytes that came while it lingered
  uint64_t request_ = 0;    // how many there were
  int64_t came_nanos_ = 0;  // the last whole one
  boost::beast::flat_buffer buffer_;
  std::unique_ptr<Parser> parser_;  // only while a request is read, or served at its turn
  std::string if_none_match_;
  std::unique_ptr<HeaderList> extra_headers_;
  absl::AnyInvocable<void() &&> gone_;
  absl::AnyInvocable<Response() &&> expired_;
  // Of the response.
  std::string head_;
  std::string body_;
  std::shared_ptr<const std::string> shared_body_;
  struct Streaming {
    std::shared_ptr<StreamState> state;
    std::deque<Chunk> waiting;
    std::vector<Chunk> written;      // by the write under way
    std::vector<std::string> sizes;  // of these, as they are sent
    absl::AnyInvocable<void() &&> drained;
  };
  std::unique_ptr<Streaming> stream_;
  // The stage's, and when the timeout is due, on the timer's clock; kNever: none.
  static constexpr int64_t kNever = INT64_MAX;
  int64_t deadline_nanos_ = kNever;
  int64_t armed_nanos_ = kNever;
  Timeout timeout_;
};

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_CONNECTION_H_
