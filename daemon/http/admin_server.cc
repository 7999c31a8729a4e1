#include "daemon/http/admin_server.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ip/v6_only.hpp"
#include "boost/asio/post.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http.hpp"
#include "daemon/http/admin_router.h"
#include "daemon/http/request_checks.h"
#include "registry/base/listen.h"
#include "registry/base/log.h"
#include "registry/base/version.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

using HttpResponse = http::response<http::string_body>;

// How long no connection is accepted after accept() failed, for example without descriptors.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

// What every response carries: no outside assets, no framing, no guessing of types, no caching by
// others.
constexpr std::pair<const char*, const char*> kSecurityHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-cache"},
    {"Vary", "Accept"},
};

AdminResponse TooLarge(int http_status, const char* part, size_t limit) {
  return AdminResponse::Error(
      http_status, Refusal(registry::v1::ERROR_REASON_TOO_LARGE,
                           absl::StrCat("the ", part, " is larger than ", limit, " bytes"),
                           {{"limit", absl::StrCat(limit)}}));
}

}  // namespace

class AdminServer::Impl : public std::enable_shared_from_this<AdminServer::Impl> {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {}

  absl::Status Bind();
  void Start();
  void Stop();

  AdminRouter router;
  std::set<std::string> probes;  // paths
  const std::string& address() const { return address_; }

 private:
  class Connection;
  class Answer;

  void Accept(tcp::acceptor* acceptor);
  // Closes the connection that can best be spared, if not all are needed.
  void MakeRoom();
  // Accepts again after a while: at once it would fail again, and again.
  void AcceptLater(tcp::acceptor* acceptor, const error_code& error);
  void Ended(Connection* connection);
  // The connection has a whole request.
  void Queue(std::shared_ptr<Connection> connection, bool probe);
  void TakeTurn();
  std::optional<AdminResponse> Dispatch(const HttpRequest& request, const std::string& peer,
                                        const std::shared_ptr<Answer>& answer);

  const Options options_;
  std::string address_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ =
      asio::make_work_guard(context_);
  std::vector<std::unique_ptr<tcp::acceptor>> acceptors_;
  std::vector<tcp::acceptor*> waiting_;  // for a connection to end
  std::unordered_set<Connection*> connections_;
  // Those whose turn comes: one request each.
  std::deque<std::shared_ptr<Connection>> queue_, probe_queue_;
  bool turn_is_posted_ = false;
  uint64_t accepted_ = 0;
  std::thread thread_;
  bool stopped_ = false;
  bool accepting_ = true;  // the last accept did not fail
};

// The one answer to a request, from any thread.
class AdminServer::Impl::Answer {
 public:
  Answer(std::shared_ptr<Impl> impl, std::weak_ptr<Connection> connection)
      : impl_(std::move(impl)), connection_(std::move(connection)) {}
  ~Answer() {
    if (!sent_)
      Send(AdminResponse::Error(absl::InternalError("the request was dropped; try again")));
  }

  void Send(AdminResponse response);

 private:
  const std::shared_ptr<Impl> impl_;
  const std::weak_ptr<Connection> connection_;
  std::atomic<bool> sent_{false};
};

// All on the server's thread.
class AdminServer::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Impl> impl, tcp::socket socket, uint64_t number)
      : number_(number),
        address_(AddressOf(socket)),
        impl_(std::move(impl)),
        stream_(std::move(socket)),
        buffer_(impl_->options_.max_header_bytes) {}
  ~Connection() { impl_->Ended(this); }

  void Read() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(impl_->options_.max_header_bytes));
    parser_->body_limit(impl_->options_.max_body_bytes);
    // One deadline for all of the request: a client that drips does not put it off.
    stream_.expires_after(absl::ToChronoNanoseconds(impl_->options_.request_timeout));
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](const error_code& error, size_t) { self->OnRead(error); });
  }

  void Write(AdminResponse answer) {
    auto response = std::make_shared<HttpResponse>();
    const bool whole = parser_->is_done() && !ambiguous_;
    const HttpRequest& request = parser_->get();
    const auto if_none_match = request.find(http::field::if_none_match);
    if (!answer.etag.empty()) {
      const std::string quoted = absl::StrCat("\"", answer.etag, "\"");
      response->set(http::field::etag, quoted);
      if (answer.status == 200 && if_none_match != request.end() &&
          View(if_none_match->value()).find(quoted) != std::string_view::npos) {
        answer.status = 304;
        answer.body.clear();
      }
    }
    response->version(11);
    response->result(static_cast<unsigned>(answer.status));
    response->keep_alive(whole && request.keep_alive());
    response->set(http::field::server, absl::StrCat("failback/", kVersion));
    for (const auto& [name, value] : kSecurityHeaders) response->set(name, value);
    for (const auto& [name, value] : answer.headers) response->set(name, value);
    if (answer.status != 304) response->set(http::field::content_type, answer.content_type);
    const size_t size = answer.body.size();
    if (request.method() != http::verb::head) response->body() = std::move(answer.body);
    if (answer.status != 304) response->content_length(size);
    stream_.expires_after(absl::ToChronoNanoseconds(impl_->options_.response_timeout));
    // Beast would look for the body whose length a HEAD's answer gives.
    auto serializer = std::make_shared<http::response_serializer<http::string_body>>(*response);
    const auto done = [self = shared_from_this(), response, serializer](const error_code& error,
                                                                        size_t) {
      if (error || !response->keep_alive()) return self->Close();
      self->Read();
    };
    if (request.method() == http::verb::head) {
      http::async_write_header(stream_, *serializer, done);
    } else {
      http::async_write(stream_, *serializer, done);
    }
  }

  // In the order of their coming.
  uint64_t number() const { return number_; }
  const std::string& address() const { return address_; }
  // It waits for its client, be it for a request or for the end of a response, or for its turn.
  bool may_close() const { return pending_ == nullptr; }

  void Close() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

 private:
  void OnRead(const error_code& error) {
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return Write(TooLarge(431, "header", impl_->options_.max_header_bytes));
    }
    if (error == http::error::body_limit) {
      return Write(TooLarge(413, "body", impl_->options_.max_body_bytes));
    }
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      return Write(AdminResponse::Error(
          absl::InvalidArgumentError(absl::StrCat("not HTTP/1.1: ", error.message()))));
    }
    if (error) return Close();
    if (const absl::Status clear = CheckUnambiguous(parser_->get()); !clear.ok()) {
      ambiguous_ = true;
      return Write(AdminResponse::Error(clear));
    }
    // Until it is answered nothing is awaited from the client.
    stream_.expires_never();
    const std::string_view target = View(parser_->get().target());
    impl_->Queue(shared_from_this(),
                 impl_->probes.count(std::string(target.substr(0, target.find('?')))) > 0);
  }

 public:
  // Its turn has come.
  void Serve() {
    if (!stream_.socket().is_open()) return;
    auto answer = std::make_shared<Answer>(impl_, weak_from_this());
    pending_ = shared_from_this();
    std::optional<AdminResponse> refused = impl_->Dispatch(parser_->get(), address_, answer);
    if (refused.has_value()) answer->Send(*std::move(refused));
  }

  // Keeps the connection while a handler works.
  void Answered(AdminResponse response) {
    const std::shared_ptr<Connection> self = std::move(pending_);
    pending_ = nullptr;
    if (self == nullptr || !stream_.socket().is_open()) return;
    Write(std::move(response));
  }
  void Abandon() {
    const std::shared_ptr<Connection> self = std::move(pending_);
    pending_ = nullptr;
    Close();
  }

 private:
  static std::string AddressOf(const tcp::socket& socket) {
    error_code error;
    const auto peer = socket.remote_endpoint(error);
    return error ? std::string() : peer.address().to_string();
  }

  const uint64_t number_;
  const std::string address_;
  const std::shared_ptr<Impl> impl_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<Connection> pending_;
  bool ambiguous_ = false;  // where the next request begins is not certain
};

void AdminServer::Impl::Answer::Send(AdminResponse response) {
  if (sent_.exchange(true)) return;
  asio::post(impl_->context_, [connection = connection_, response = std::move(response)]() mutable {
    if (const auto alive = connection.lock()) alive->Answered(std::move(response));
  });
}

absl::Status AdminServer::Impl::Bind() {
  ListenOptions listen_options;
  listen_options.allow_remote_plaintext = options_.allow_remote;
  absl::StatusOr<ListenAddress> listen = ListenAddress::Prepare(options_.listen, listen_options);
  if (!listen.ok()) return listen.status();
  if (listen->address().is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", options_.listen, "' is a Unix socket; allowed is HOST:PORT"));
  }
  tcp::resolver resolver(context_);
  error_code error;
  const auto found =
      resolver.resolve(listen->address().host, absl::StrCat(listen->address().port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  for (const auto& entry : found) {
    auto acceptor = std::make_unique<tcp::acceptor>(context_);
    acceptor->open(entry.endpoint().protocol(), error);
    if (!error) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
    if (!error && entry.endpoint().address().is_v6()) {
      acceptor->set_option(asio::ip::v6_only(true), error);
    }
    if (!error) acceptor->bind(entry.endpoint(), error);
    if (!error) acceptor->listen(asio::socket_base::max_listen_connections, error);
    if (!error) acceptors_.push_back(std::move(acceptor));
  }
  if (acceptors_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", listen->text(), ": ", error.message()));
  }
  address_ = listen->text();
  return absl::OkStatus();
}

void AdminServer::Impl::Start() {
  for (const auto& acceptor : acceptors_) Accept(acceptor.get());
  thread_ = std::thread([this] { context_.run(); });
}

void AdminServer::Impl::Stop() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    stopped_ = true;
    work_.reset();
    for (const auto& acceptor : acceptors_) {
      error_code ignored;
      acceptor->close(ignored);
    }
    for (auto* queue : {&queue_, &probe_queue_}) std::exchange(*queue, {}).clear();
    // Abandon may end a connection, which leaves the set.
    std::vector<std::shared_ptr<Connection>> open;
    for (Connection* connection : connections_) open.push_back(connection->shared_from_this());
    for (const auto& connection : open) connection->Abandon();
  });
  thread_.join();
}

void AdminServer::Impl::Accept(tcp::acceptor* acceptor) {
  if (connections_.size() > options_.max_connections) {
    waiting_.push_back(acceptor);
    return;
  }
  acceptor->async_accept([this, acceptor](const error_code& error, tcp::socket socket) {
    if (stopped_ || error == asio::error::operation_aborted) return;
    if (error) return AcceptLater(acceptor, error);
    accepting_ = true;
    if (connections_.size() >= options_.max_connections) MakeRoom();
    auto connection =
        std::make_shared<Connection>(shared_from_this(), std::move(socket), ++accepted_);
    connections_.insert(connection.get());
    connection->Read();
    Accept(acceptor);
  });
}

void AdminServer::Impl::MakeRoom() {
  std::map<std::string, int> of_address;
  for (const Connection* connection : connections_) ++of_address[connection->address()];
  Connection* spared = nullptr;
  const auto rank = [&](const Connection* connection) {
    return std::pair(-of_address[connection->address()], connection->number());
  };
  for (Connection* connection : connections_) {
    if (!connection->may_close()) continue;
    if (spared == nullptr || rank(connection) < rank(spared)) spared = connection;
  }
  if (spared == nullptr) return;
  spared->Close();
  for (auto* queue : {&queue_, &probe_queue_}) {
    const auto it = std::find_if(queue->begin(), queue->end(),
                                 [&](const auto& queued) { return queued.get() == spared; });
    if (it == queue->end()) continue;
    const std::shared_ptr<Connection> last = std::move(*it);  // it may be destroyed, and calls back
    queue->erase(it);
    break;
  }
}

void AdminServer::Impl::Queue(std::shared_ptr<Connection> connection, bool probe) {
  if (stopped_) return;
  (probe ? probe_queue_ : queue_).push_back(std::move(connection));
  if (std::exchange(turn_is_posted_, true)) return;
  asio::post(context_, [this] { TakeTurn(); });
}

void AdminServer::Impl::TakeTurn() {
  auto& queue = probe_queue_.empty() ? queue_ : probe_queue_;
  turn_is_posted_ = false;
  if (queue.empty()) return;
  const std::shared_ptr<Connection> next = std::move(queue.front());
  queue.pop_front();
  next->Serve();
  if (queue_.empty() && probe_queue_.empty()) return;
  // Behind what has come meanwhile.
  if (!std::exchange(turn_is_posted_, true)) asio::post(context_, [this] { TakeTurn(); });
}

void AdminServer::Impl::AcceptLater(tcp::acceptor* acceptor, const error_code& error) {
  if (std::exchange(accepting_, false)) {
    Log(LogLevel::kWarning, "admin endpoint takes no connections",
        {{"error", error.message()}, {"address", address_}});
  }
  const auto again = options_.timer->NewTimeout(
      [weak = weak_from_this(), acceptor] {
        const auto impl = weak.lock();
        if (impl == nullptr) return;
        asio::post(impl->context_, [impl, acceptor] {
          if (!impl->stopped_) impl->Accept(acceptor);
        });
      },
      kAcceptPause);
  if (!again.ok()) waiting_.push_back(acceptor);  // the process ends
}

void AdminServer::Impl::Ended(Connection* connection) {
  connections_.erase(connection);
  if (stopped_) return;
  std::vector<tcp::acceptor*> waiting;
  waiting.swap(waiting_);
  for (tcp::acceptor* acceptor : waiting) Accept(acceptor);
}

std::optional<AdminResponse> AdminServer::Impl::Dispatch(const HttpRequest& request,
                                                         const std::string& peer,
                                                         const std::shared_ptr<Answer>& answer) {
  const std::string target(View(request.target()));
  const size_t mark = target.find('?');
  AdminRequest call;
  call.path = target.substr(0, mark);
  call.method =
      request.method() == http::verb::head ? "GET" : std::string(View(request.method_string()));
  const absl::StatusOr<AdminRouter::Match> match = router.Find(call.method, call.path);
  if (!match.ok()) return AdminResponse::Error(match.status());
  if (auto refused = RefuseRequest(request, options_.hosts, options_.token_file)) return refused;
  if (match->handler == nullptr) {
    if (!match->allowed.empty()) {
      const std::string allowed = absl::StrJoin(match->allowed, ", ");
      AdminResponse response =
          AdminResponse::Error(405, Refusal(registry::v1::ERROR_REASON_UNSUPPORTED,
                                            absl::StrCat(call.path, " takes ", allowed)));
      response.headers.emplace_back("Allow", allowed);
      return response;
    }
    return AdminResponse::Error(Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                                        absl::StrCat("there is no ", call.path, "; there are ",
                                                     absl::StrJoin(router.paths(), ", "))));
  }
  auto query = ParseQuery(mark == std::string::npos ? "" : target.substr(mark + 1));
  if (!query.ok()) return AdminResponse::Error(query.status());
  call.query = *std::move(query);
  call.parameters = match->parameters;
  call.accept = std::string(View(request[http::field::accept]));
  call.if_none_match = std::string(View(request[http::field::if_none_match]));
  call.body = request.body();
  call.peer = peer;
  if (call.method == "POST") {
    Log(LogLevel::kInfo, "admin request", {{"method", call.method}, {"path", call.path}});
  }
  try {
    (*match->handler)(call,
                      [answer](AdminResponse response) { answer->Send(std::move(response)); });
  } catch (const std::exception& e) {
    return AdminResponse::Error(absl::InternalError(absl::StrCat("the handler threw: ", e.what())));
  }
  return std::nullopt;
}

AdminServer::AdminServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

AdminServer::~AdminServer() { Stop(); }

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Bind(Options options) {
  if (options.timer == nullptr) return absl::InvalidArgumentError("timer: is required");
  auto impl = std::make_shared<Impl>(std::move(options));
  if (auto status = impl->Bind(); !status.ok()) return status;
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

void AdminServer::Handle(const std::string& method, const std::string& pattern, Handler handler,
                         Turn turn) {
  impl_->router.Add(method, pattern, std::move(handler));
  if (turn == Turn::kProbe) impl_->probes.insert(pattern);
}

void AdminServer::Start() { impl_->Start(); }

void AdminServer::Stop() { impl_->Stop(); }

const std::string& AdminServer::address() const { return impl_->address(); }

}  // namespace failback
