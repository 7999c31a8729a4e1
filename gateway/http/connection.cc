#include "gateway/http/connection.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/post.hpp"
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
  came_nanos_ = owner_->options().timer->clock()->NowNanos();
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
  owner_->Dispatch(parser_->get(), this, NewResponder());
  if (stage_ != Stage::kServing && stage_ != Stage::kStreaming) return;
  // Parked: what came is not needed any more.
  parser_ = nullptr;
  if (buffer_.capacity() > buffer_.size() + kBodyReadBytes / 2) buffer_.shrink_to_fit();
  parked_ = true;
  ++owner_->counters().parked;
  Pump();
}

// --- The end, and time.

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

void Connection::Shutdown(const absl::Status& status) {
  auto gone = std::exchange(gone_, nullptr);
  if (stage_ == Stage::kQueued) stage_ = Stage::kServing;
  if (stage_ == Stage::kServing) {
    keep_alive_ = false;
    Answer(request_, owner_->Error(503, status));
  } else if (stage_ == Stage::kStreaming) {
    keep_alive_ = false;
    shut_down_ = true;
    EndStream(request_);
  }
  if (stage_ == Stage::kStreaming && !last_sent_) {
    // What is being written comes first: a client that reads gets the end, too.
    SetDeadline(kLingerTime);
  } else {
    // What fits into the socket's buffer has been sent: an answer does.
    Close();
  }
  if (gone != nullptr) std::move(gone)();
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

}  // namespace failback::http
