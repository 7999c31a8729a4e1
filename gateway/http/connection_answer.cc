// What a connection sends: answers, from any thread, and streams.

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/write.hpp"
#include "gateway/http/connection.h"

namespace failback::http {
namespace {

namespace asio = boost::asio;

constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr char kLineEnd[] = "\r\n";
constexpr char kLastChunk[] = "0\r\n\r\n";

}  // namespace

// One request of a connection, for threads other than the server's.
class Connection::Handle {
 public:
  Handle(std::shared_ptr<ConnectionOwner> owner, std::weak_ptr<Connection> connection,
         uint64_t request)
      : owner_(std::move(owner)), connection_(std::move(connection)), request_(request) {}

  // On the server's thread, unless the connection has been destroyed. `act` takes it and the request.
  template <typename Act>
  void Do(Act act) const {
    asio::dispatch(owner_->context(),
                   [weak = connection_, request = request_, act = std::move(act)]() mutable {
                     if (const auto connection = weak.lock()) act(connection.get(), request);
                   });
  }
  // `gone` runs also when it has been.
  void SetGone(absl::AnyInvocable<void() &&> gone) const {
    asio::dispatch(owner_->context(),
                   [weak = connection_, request = request_, gone = std::move(gone)]() mutable {
                     const auto connection = weak.lock();
                     if (connection == nullptr) return std::move(gone)();
                     connection->SetGone(request, std::move(gone));
                   });
  }
  const ConnectionOwner& owner() const { return *owner_; }

 private:
  const std::shared_ptr<ConnectionOwner> owner_;
  const std::weak_ptr<Connection> connection_;
  const uint64_t request_;
};

// The exchange of one request, from any thread.
class Connection::Link final : public Exchange {
 public:
  explicit Link(Handle handle) : handle_(std::move(handle)) {}
  ~Link() override {
    if (answered_) return;
    Send(handle_.owner().Error(500, absl::InternalError("the request was dropped; try again")));
  }

  void Send(Response response) override {
    if (answered_.exchange(true)) return;
    handle_.Do([response = std::move(response)](Connection* connection, uint64_t request) mutable {
      connection->Answer(request, std::move(response));
    });
  }
  std::unique_ptr<BodyStream> Begin(Response head) override;
  void WhenGone(absl::AnyInvocable<void() &&> gone) override { handle_.SetGone(std::move(gone)); }
  void WaitAtMost(absl::Duration wait, absl::AnyInvocable<Response() &&> answer) override {
    handle_.Do(
        [wait, answer = std::move(answer)](Connection* connection, uint64_t request) mutable {
          connection->SetWait(request, wait, std::move(answer));
        });
  }

 private:
  const Handle handle_;
  std::atomic<bool> answered_{false};
};

// The stream of one request, from any thread.
class Connection::Stream final : public BodyStream {
 public:
  Stream(Handle handle, std::shared_ptr<StreamState> state)
      : handle_(std::move(handle)), state_(std::move(state)) {}
  ~Stream() override { End(); }

  bool Write(std::shared_ptr<const std::string> chunk) override {
    if (state_->over || ended_) return false;
    if (chunk->empty()) return true;
    const size_t before = state_->unread.fetch_add(chunk->size());
    if (before > 0 && before + chunk->size() > handle_.owner().options().max_unread_bytes) {
      state_->unread.fetch_sub(chunk->size());
      return false;
    }
    handle_.Do([chunk = std::move(chunk)](Connection* connection, uint64_t request) mutable {
      connection->AddChunk(request, std::move(chunk));
    });
    return true;
  }
  void WhenDrained(absl::AnyInvocable<void() &&> drained) override {
    handle_.Do([drained = std::move(drained)](Connection* connection, uint64_t request) mutable {
      connection->SetDrained(request, std::move(drained));
    });
  }
  void WhenGone(absl::AnyInvocable<void() &&> gone) override { handle_.SetGone(std::move(gone)); }
  void End() override {
    if (ended_.exchange(true)) return;
    handle_.Do([](Connection* connection, uint64_t request) { connection->EndStream(request); });
  }

 private:
  const Handle handle_;
  const std::shared_ptr<StreamState> state_;
  std::atomic<bool> ended_{false};
};

std::unique_ptr<BodyStream> Connection::Link::Begin(Response head) {
  auto state = std::make_shared<StreamState>();
  if (answered_.exchange(true)) {
    state->over = true;
  } else {
    handle_.Do([head = std::move(head), state](Connection* connection, uint64_t request) mutable {
      connection->BeginStream(request, std::move(head), std::move(state));
    });
  }
  return std::make_unique<Stream>(handle_, std::move(state));
}

Responder Connection::NewResponder() {
  return Responder(std::make_unique<Link>(Handle(owner_, shared_from_this(), request_)));
}

template <typename Buffers, typename Handler>
void Connection::AsyncWrite(const Buffers& buffers, Handler handler) {
  if (tls_ != nullptr) {
    asio::async_write(*tls_, buffers, std::move(handler));
  } else {
    asio::async_write(socket_, buffers, std::move(handler));
  }
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
  owner_->counters().duration_nanos.Observe(owner_->options().timer->clock()->NowNanos() -
                                            came_nanos_);
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
  owner_->counters().CountResponse(response.status);
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
  owner_->counters().CountResponse(head.status);
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
  if (!stream_->waiting.empty() || (ending_ && !last_sent_)) {
    WriteChunks();
    if (shut_down_) Close();
    return;
  }
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

}  // namespace failback::http
