#include "gateway/http/connection.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/http/error.hpp"
#include "gateway/http/tls.h"
#include "registry/model/errors.h"

namespace failback::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;

// What is read at once: of a head, and of a long body.
constexpr size_t kReadBytes = 512;
constexpr size_t kBodyReadBytes = 16 << 10;
// After the last response a client has so long to stop sending, and so much.
constexpr absl::Duration kLingerTime = absl::Seconds(2);
constexpr size_t kMostThrownAway = 1 << 20;

constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr char kLineEnd[] = "\r\n";
constexpr char kLastChunk[] = "0\r\n\r\n";

bool IsParserError(const boost::system::error_code& error) {
  return error.category() == bhttp::make_error_code(bhttp::error::bad_method).category();
}

absl::Status TooLarge(const char* part, size_t limit) {
  return Refusal(registry::v1::ERROR_REASON_TOO_LARGE,
                 absl::StrCat("the ", part, " is larger than ", limit, " bytes"),
                 {{"limit", absl::StrCat(limit)}});
}

bool IsCompressed(const ParsedRequest& request) {
  const std::string_view coding = View(request[bhttp::field::content_encoding]);
  return !coding.empty() && coding != "identity";
}

}  // namespace

// The exchange of one request, from any thread.
class Connection::Link final : public Exchange {
 public:
  Link(std::shared_ptr<Connection> connection, uint64_t request)
      : owner_(connection->owner_), connection_(connection), request_(request) {}
  ~Link() override {
    if (answered_) return;
    Send(owner_->Error(500, absl::InternalError("the request was dropped; try again")));
  }

  void Send(Response response) override {
    if (answered_.exchange(true)) return;
    Do([request = request_, response = std::move(response)](Connection* connection) mutable {
      connection->Answer(request, std::move(response));
    });
  }
  std::unique_ptr<BodyStream> Begin(Response head) override;
  void WhenGone(absl::AnyInvocable<void() &&> gone) override {
    asio::dispatch(owner_->context(),
                   [weak = connection_, request = request_, gone = std::move(gone)]() mutable {
                     const auto connection = weak.lock();
                     if (connection == nullptr) return std::move(gone)();
                     connection->SetGone(request, std::move(gone));
                   });
  }
  void WaitAtMost(absl::Duration wait, absl::AnyInvocable<Response() &&> answer) override {
    Do([request = request_, wait, answer = std::move(answer)](Connection* connection) mutable {
      connection->SetWait(request, wait, std::move(answer));
    });
  }

 private:
  // On the server's thread, unless the connection has been destroyed.
  template <typename Act>
  void Do(Act act) {
    asio::dispatch(owner_->context(), [weak = connection_, act = std::move(act)]() mutable {
      if (const auto connection = weak.lock()) act(connection.get());
    });
  }

  const std::shared_ptr<ConnectionOwner> owner_;
  const std::weak_ptr<Connection> connection_;
  const uint64_t request_;
  std::atomic<bool> answered_{false};
};

// The stream of one request, from any thread.
class Connection::Stream final : public BodyStream {
 public:
  Stream(std::shared_ptr<ConnectionOwner> owner, std::weak_ptr<Connection> connection,
         uint64_t request, std::shared_ptr<StreamState> state)
      : owner_(std::move(owner)),
        connection_(std::move(connection)),
        request_(request),
        state_(std::move(state)) {}
  ~Stream() override { End(); }

  bool Write(std::shared_ptr<const std::string> chunk) override {
    if (state_->over || ended_) return false;
    if (chunk->empty()) return true;
    const size_t before = state_->unread.fetch_add(chunk->size());
    if (before > 0 && before + chunk->size() > owner_->options().max_unread_bytes) {
      state_->unread.fetch_sub(chunk->size());
      return false;
    }
    Do([request = request_, chunk = std::move(chunk)](Connection* connection) mutable {
      connection->AddChunk(request, std::move(chunk));
    });
    return true;
  }
  void WhenDrained(absl::AnyInvocable<void() &&> drained) override {
    Do([request = request_, drained = std::move(drained)](Connection* connection) mutable {
      connection->SetDrained(request, std::move(drained));
    });
  }
  void WhenGone(absl::AnyInvocable<void() &&> gone) override {
    asio::dispatch(owner_->context(),
                   [weak = connection_, request = request_, gone = std::move(gone)]() mutable {
                     const auto connection = weak.lock();
                     if (connection == nullptr) return std::move(gone)();
                     connection->SetGone(request, std::move(gone));
                   });
  }
  void End() override {
    if (ended_.exchange(true)) return;
    Do([request = request_](Connection* connection) { connection->EndStream(request); });
  }

 private:
  template <typename Act>
  void Do(Act act) {
    asio::dispatch(owner_->context(), [weak = connection_, act = std::move(act)]() mutable {
      if (const auto connection = weak.lock()) act(connection.get());
    });
  }

  const std::shared_ptr<ConnectionOwner> owner_;
  const std::weak_ptr<Connection> connection_;
  const uint64_t request_;
  const std::shared_ptr<StreamState> state_;
  std::atomic<bool> ended_{false};
};

std::unique_ptr<BodyStream> Connection::Link::Begin(Response head) {
  auto state = std::make_shared<StreamState>();
  if (answered_.exchange(true)) {
    state->over = true;
  } else {
    Do([request = request_, head = std::move(head), state](Connection* connection) mutable {
      connection->BeginStream(request, std::move(head), std::move(state));
    });
  }
  return std::make_unique<Stream>(owner_, connection_, request_, std::move(state));
}

Connection::Connection(std::shared_ptr<ConnectionOwner> owner, Socket socket,
                       std::shared_ptr<asio::ssl::context> tls, uint64_t number)
    : number_(number),
      owner_(std::move(owner)),
      socket_(std::move(socket)),
      tls_context_(std::move(tls)),
      buffer_(owner_->options().max_header_bytes) {
  ErrorCode ignored;
  endpoint_ = socket_.remote_endpoint(ignored);
  // A response that is written in two parts must not wait for the client's acknowledgement.
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  if (tls_context_ != nullptr) tls_ = std::make_unique<Tls>(socket_, *tls_context_);
  ++owner_->counters().connections;
}

Connection::~Connection() { --owner_->counters().connections; }

void Connection::Start() {
  if (tls_ == nullptr) return BeginRequest();
  SetDeadline(owner_->options().request_timeout);
  tls_->async_handshake(
      asio::ssl::stream_base::server, [self = shared_from_this()](const ErrorCode& error) {
        if (self->closed()) return;
        if (error) return self->Close();
        self->shown_ = std::make_unique<Shown>(ShownBy(self->tls_->native_handle()));
        self->BeginRequest();
      });
}

std::string Connection::peer() const {
  const auto address = endpoint_.address();
  return address.is_v6() ? absl::StrCat("ipv6:[", address.to_string(), "]:", endpoint_.port())
                         : absl::StrCat("ipv4:", address.to_string(), ":", endpoint_.port());
}

const Shown& Connection::shown() const {
  static const auto* const kNothing = new Shown;
  return shown_ == nullptr ? *kNothing : *shown_;
}

// --- Reading.

void Connection::BeginRequest() {
  stage_ = Stage::kReading;
  parser_ = nullptr;
  extra_headers_ = nullptr;
  continue_sent_ = false;
  SetDeadline(owner_->options().request_timeout);
  if (buffer_.size() > 0) return Parse();
  if (client_left_) return Close();
  Pump();
}

void Connection::Pump() {
  if (reading_ || client_left_ || closed()) return;
  const size_t room = buffer_.max_size() - buffer_.size();
  if (room == 0) return;
  size_t wanted = std::max(kReadBytes, buffer_.capacity() - buffer_.size());
  if (stage_ == Stage::kReading && parser_ != nullptr && parser_->is_header_done()) {
    const auto rest = parser_->content_length_remaining();
    if (rest.has_value() && *rest > kReadBytes) wanted = kBodyReadBytes;
  }
  reading_ = true;
  const auto space = buffer_.prepare(std::min(room, wanted));
  auto done = [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
    self->OnBytes(error, bytes);
  };
  if (tls_ != nullptr) {
    tls_->async_read_some(space, std::move(done));
  } else {
    socket_.async_read_some(space, std::move(done));
  }
}

void Connection::OnBytes(const ErrorCode& error, size_t bytes) {
  reading_ = false;
  if (closed()) return;
  if (error) return OnClientLeft(error);
  buffer_.commit(bytes);
  if (stage_ == Stage::kReading) return Parse();
  if (stage_ == Stage::kLingering) {
    thrown_away_ += buffer_.size();
    buffer_.consume(buffer_.size());
    if (thrown_away_ > kMostThrownAway) return Close();
  }
  if (stage_ != Stage::kWriting) Pump();
}

void Connection::OnClientLeft(const ErrorCode& error) {
  client_left_ = true;
  const bool half = error == asio::error::eof;
  // A client that has only said all that it wants to say may wait for its answer.
  if (half && stage_ == Stage::kServing && gone_ == nullptr) return;
  if (half && (stage_ == Stage::kWriting || stage_ == Stage::kQueued)) return;
  Close();
}

void Connection::Parse() {
  if (parser_ == nullptr) {
    parser_ = std::make_unique<Parser>();
    parser_->eager(true);
    parser_->header_limit(static_cast<uint32_t>(owner_->options().max_header_bytes));
    parser_->body_limit(owner_->options().max_body_bytes);
  }
  while (true) {
    ErrorCode error;
    const size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error && error != bhttp::error::need_more) return OnParseError(error);
    if (parser_->is_done()) return WholeRequest();
    if (error || used == 0 || buffer_.size() == 0) break;
  }
  if (buffer_.size() == buffer_.max_size()) return OnParseError(bhttp::error::buffer_overflow);
  if (client_left_) return Close();
  const bool expects = parser_->is_header_done() && !continue_sent_ &&
                       beast::iequals(parser_->get()[bhttp::field::expect], "100-continue");
  if (expects) return SendContinue();
  Pump();
}

void Connection::SendContinue() {
  continue_sent_ = true;
  AsyncWrite(asio::buffer(kContinue, sizeof(kContinue) - 1),
             [self = shared_from_this()](const ErrorCode& error, size_t) {
               if (self->closed()) return;
               if (error) return self->Close();
               self->Pump();
             });
}

void Connection::OnParseError(const ErrorCode& error) {
  const Server::Options& options = owner_->options();
  if (error == bhttp::error::header_limit || error == bhttp::error::buffer_overflow) {
    return Reject(431, TooLarge("header", options.max_header_bytes));
  }
  if (error == bhttp::error::body_limit) {
    return Reject(413, TooLarge("body", options.max_body_bytes));
  }
  if (!IsParserError(error)) return Close();
  Reject(400, absl::InvalidArgumentError(absl::StrCat("not HTTP/1.1: ", error.message())));
}

void Connection::Reject(int http_status, const absl::Status& status) {
  ++owner_->counters().refused;
  is_head_ = false;
  http10_ = false;
  keep_alive_ = false;
  linger_ = true;
  if_none_match_.clear();
  stage_ = Stage::kServing;
  Write(owner_->Error(http_status, status));
}

void Connection::WholeRequest() {
  const ParsedRequest& request = parser_->get();
  if (const absl::Status clear = CheckUnambiguous(request); !clear.ok()) return Reject(400, clear);
  if (IsCompressed(request)) {
    return Reject(415,
                  InvalidField("Content-Encoding", "a body is taken as it is, not compressed"));
  }
  ++request_;
  ++owner_->counters().requests;
  keep_alive_ = parser_->keep_alive();
  is_head_ = request.method() == bhttp::verb::head;
  http10_ = request.version() < 11;
  if_none_match_ = std::string(View(request[bhttp::field::if_none_match]));
  stage_ = Stage::kQueued;
  // Until it is answered nothing is awaited from the client.
  NoDeadline();
  const std::string_view target = View(request.target());
  owner_->Queue(shared_from_this(), target.substr(0, target.find('?')));
}

void Connection::Serve() {
  if (stage_ != Stage::kQueued) return;
  stage_ = Stage::kServing;
  owner_->Dispatch(parser_->get(), this,
                   Responder(std::make_unique<Link>(shared_from_this(), request_)));
  if (stage_ != Stage::kServing && stage_ != Stage::kStreaming) return;
  // Parked: what came is not needed any more.
  parser_ = nullptr;
  if (buffer_.capacity() > buffer_.size() + kBodyReadBytes / 2) buffer_.shrink_to_fit();
  parked_ = true;
  ++owner_->counters().parked;
  Pump();
}

// --- Answering.

void Connection::EndParking() {
  if (std::exchange(parked_, false)) --owner_->counters().parked;
  expired_ = nullptr;
  NoDeadline();
}

void Connection::Answer(uint64_t request, Response response) {
  if (stage_ != Stage::kServing || request != request_) return;
  gone_ = nullptr;
  EndParking();
  Write(std::move(response));
}

void Connection::SetGone(uint64_t request, absl::AnyInvocable<void() &&> gone) {
  const bool waits = stage_ == Stage::kServing || stage_ == Stage::kStreaming;
  if (request == request_ && closed()) return std::move(gone)();
  if (request != request_ || !waits) return;
  gone_ = std::move(gone);
  if (client_left_) Close();
}

void Connection::SetWait(uint64_t request, absl::Duration wait,
                         absl::AnyInvocable<Response() &&> answer) {
  if (request != request_ || stage_ != Stage::kServing) return;
  expired_ = std::move(answer);
  SetDeadline(wait);
}

bool Connection::EndWait() {
  if (!may_end_wait()) return false;
  keep_alive_ = false;
  auto expired = std::move(expired_);
  Answer(request_, std::move(expired)());
  return true;
}

void Connection::PutExtraHeaders(Response* response) const {
  if (extra_headers_ == nullptr) return;
  response->headers.insert(response->headers.end(), extra_headers_->begin(), extra_headers_->end());
}

void Connection::Write(Response response) {
  stage_ = Stage::kWriting;
  if (response.status == 200 && Matches(if_none_match_, response.etag)) response.status = 304;
  const bool has_body = response.status >= 200 && response.status != 204 && response.status != 304;
  if (!has_body) response.content_type.clear();
  PutExtraHeaders(&response);
  HeadOptions head;
  head.keep_alive = keep_alive_;
  if (has_body) head.content_length = response.content().size();
  head_ = FormatHead(response, owner_->options().headers, head);
  body_.clear();
  if (has_body && !is_head_) {
    body_ = std::move(response.body);
    shared_body_ = std::move(response.shared_body);
  }
  SetDeadline(owner_->options().response_timeout);
  const std::string& body = shared_body_ != nullptr ? *shared_body_ : body_;
  AsyncWrite(
      std::array<asio::const_buffer, 2>{asio::buffer(head_), asio::buffer(body)},
      [self = shared_from_this()](const ErrorCode& error, size_t) { self->OnWritten(error); });
}

void Connection::OnWritten(const ErrorCode& error) {
  if (closed()) return;
  shared_body_ = nullptr;
  body_ = std::string();
  head_ = std::string();
  if (error) return Close();
  NextRequest();
}

void Connection::NextRequest() {
  if (linger_) return Linger();
  if (!keep_alive_) return Close();
  BeginRequest();
}

void Connection::Linger() {
  stage_ = Stage::kLingering;
  parser_ = nullptr;
  buffer_.consume(buffer_.size());
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  SetDeadline(kLingerTime);
  if (client_left_) return Close();
  Pump();
}

// --- Streaming.

void Connection::BeginStream(uint64_t request, Response head, std::shared_ptr<StreamState> state) {
  if (stage_ != Stage::kServing || request != request_) {
    state->over = true;
    return;
  }
  expired_ = nullptr;
  NoDeadline();
  gone_ = nullptr;
  stage_ = Stage::kStreaming;
  chunked_ = !http10_;
  keep_alive_ = keep_alive_ && chunked_;
  ending_ = false;
  last_sent_ = false;
  PutExtraHeaders(&head);
  HeadOptions options;
  options.keep_alive = keep_alive_;
  options.chunked = chunked_;
  head_ = FormatHead(head, owner_->options().headers, options);
  stream_ = std::make_unique<Streaming>();
  stream_->state = std::move(state);
  if (!head.content().empty()) {
    stream_->state->unread.fetch_add(head.content().size());
    stream_->waiting.push_back(head.shared_body != nullptr
                                   ? std::move(head.shared_body)
                                   : std::make_shared<const std::string>(std::move(head.body)));
  }
  WriteChunks();
}

void Connection::AddChunk(uint64_t request, Chunk chunk) {
  if (stage_ != Stage::kStreaming || request != request_) return;
  stream_->waiting.push_back(std::move(chunk));
  WriteChunks();
}

void Connection::EndStream(uint64_t request) {
  if (stage_ != Stage::kStreaming || request != request_) return;
  ending_ = true;
  gone_ = nullptr;
  WriteChunks();
}

void Connection::SetDrained(uint64_t request, absl::AnyInvocable<void() &&> drained) {
  if (stage_ != Stage::kStreaming || request != request_) return;
  if (!writing_ && stream_->waiting.empty()) return std::move(drained)();
  stream_->drained = std::move(drained);
}

void Connection::WriteChunks() {
  if (writing_) return;
  std::vector<asio::const_buffer> buffers;
  if (!head_.empty()) buffers.push_back(asio::buffer(head_));
  stream_->written.assign(std::make_move_iterator(stream_->waiting.begin()),
                          std::make_move_iterator(stream_->waiting.end()));
  stream_->waiting.clear();
  stream_->sizes.clear();
  stream_->sizes.reserve(stream_->written.size());
  size_t bytes = 0;
  for (const Chunk& chunk : stream_->written) {
    bytes += chunk->size();
    if (is_head_) continue;
    if (chunked_) {
      stream_->sizes.push_back(absl::StrFormat("%x\r\n", chunk->size()));
      buffers.push_back(asio::buffer(stream_->sizes.back()));
    }
    buffers.push_back(asio::buffer(*chunk));
    if (chunked_) buffers.push_back(asio::buffer(kLineEnd, sizeof(kLineEnd) - 1));
  }
  if (ending_ && !last_sent_) {
    last_sent_ = true;
    if (chunked_ && !is_head_) buffers.push_back(asio::buffer(kLastChunk, sizeof(kLastChunk) - 1));
    if (buffers.empty()) return OnChunksWritten(ErrorCode(), bytes);
  }
  if (buffers.empty()) return;
  writing_ = true;
  SetDeadline(owner_->options().response_timeout);
  AsyncWrite(buffers, [self = shared_from_this(), bytes](const ErrorCode& error, size_t) {
    self->OnChunksWritten(error, bytes);
  });
}

void Connection::OnChunksWritten(const ErrorCode& error, size_t bytes_of_chunks) {
  writing_ = false;
  if (closed()) return;
  if (error) return Close();
  NoDeadline();
  head_ = std::string();
  stream_->written.clear();
  stream_->state->unread.fetch_sub(bytes_of_chunks);
  if (!stream_->waiting.empty() || (ending_ && !last_sent_)) return WriteChunks();
  if (last_sent_) {
    stream_->state->over = true;
    stream_ = nullptr;
    EndParking();
    return NextRequest();
  }
  if (auto drained = std::exchange(stream_->drained, nullptr); drained != nullptr) {
    std::move(drained)();
  }
}

// --- The end, and time.

void Connection::Close() {
  if (closed()) return;
  const std::shared_ptr<Connection> self = shared_from_this();
  stage_ = Stage::kClosed;
  EndParking();
  timeout_.Cancel();
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
  if (stream_ != nullptr) stream_->state->over = true;
  if (auto gone = std::exchange(gone_, nullptr); gone != nullptr) std::move(gone)();
  owner_->Closed(this);
}

void Connection::NoDeadline() { deadline_nanos_ = kNever; }

void Connection::SetDeadline(absl::Duration delay) {
  HashedWheelTimer* const timer = owner_->options().timer;
  const int64_t nanos = std::max<int64_t>(0, absl::ToInt64Nanoseconds(delay));
  const int64_t now = timer->clock()->NowNanos();
  deadline_nanos_ = nanos > kNever - now ? kNever : now + nanos;
  // What is armed already is due in time, and then looks again.
  if (deadline_nanos_ == kNever || armed_nanos_ <= deadline_nanos_) return;
  armed_nanos_ = deadline_nanos_;
  if (timeout_ && timeout_.Reschedule(delay)) return;
  absl::StatusOr<Timeout> timeout = timer->ScheduleUnbounded(
      [weak = weak_from_this(), owner = std::weak_ptr<ConnectionOwner>(owner_)] {
        const auto alive = owner.lock();
        if (alive == nullptr) return;
        asio::post(alive->context(), [weak] {
          if (const auto connection = weak.lock()) connection->OnDue();
        });
      },
      delay);
  if (timeout.ok()) timeout_ = *std::move(timeout);
}

void Connection::OnDue() {
  if (closed()) return;
  armed_nanos_ = kNever;
  if (deadline_nanos_ == kNever) return;
  const int64_t now = owner_->options().timer->clock()->NowNanos();
  if (now < deadline_nanos_) return SetDeadline(absl::Nanoseconds(deadline_nanos_ - now));
  if (stage_ == Stage::kServing) {
    if (expired_ == nullptr) return;
    auto expired = std::exchange(expired_, nullptr);
    return Answer(request_, std::move(expired)());
  }
  if (stage_ != Stage::kLingering) ++owner_->counters().slow_closed;
  Close();
}

template <typename Buffers, typename Handler>
void Connection::AsyncWrite(const Buffers& buffers, Handler handler) {
  if (tls_ != nullptr) {
    asio::async_write(*tls_, buffers, std::move(handler));
  } else {
    asio::async_write(socket_, buffers, std::move(handler));
  }
}

}  // namespace failback::http
