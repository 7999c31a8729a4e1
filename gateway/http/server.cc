#include "gateway/http/server.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ip/v6_only.hpp"
#include "boost/asio/post.hpp"
#include "gateway/http/connection.h"
#include "gateway/http/tls.h"
#include "registry/base/listen.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"

namespace failback::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// How long no connection is accepted after accept() failed, for example without descriptors.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

// To find what can be spared all connections are looked at: of many, for some at once.
constexpr size_t kSparedShare = 64;

Response PlainError(int http_status, const absl::Status& status) {
  Response response = Response::Text(absl::StrCat(status.message(), "\n"));
  response.status = http_status;
  AddRetryAfter(status, &response);
  return response;
}

}  // namespace

Response ConnectionOwner::Error(int http_status, const absl::Status& status) const {
  return options().error != nullptr ? options().error(http_status, status)
                                    : PlainError(http_status, status);
}

class Server::Impl final : public ConnectionOwner,
                           public Executor,
                           public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {
    if (options_.tls != nullptr) tls_.emplace(options_.tls);
  }

  absl::Status Bind();
  void Start();
  void Stop();

  Router router;
  std::set<std::string, std::less<>> probes;  // paths
  const std::string& address() const { return address_; }
  Statistics Stats();

  // Executor.
  void Execute(absl::AnyInvocable<void() &&> task) override {
    asio::post(context_, [task = std::move(task)]() mutable { std::move(task)(); });
  }

  // ConnectionOwner.
  const Options& options() const override { return options_; }
  asio::io_context& context() override { return context_; }
  void Queue(std::shared_ptr<Connection> connection, std::string_view path) override;
  void Dispatch(const ParsedRequest& request, Connection* connection, Responder responder) override;
  void Closed(Connection* connection) override;

 private:
  void Accept(tcp::acceptor* acceptor);
  void OnAccept(tcp::acceptor* acceptor, tcp::socket socket);
  // Closes the connection that can best be spared, if not all are needed.
  void MakeRoom();
  void FindSpared();
  // Accepts again after a while: at once it would fail again, and again.
  void AcceptLater(tcp::acceptor* acceptor, const error_code& error);
  void TakeTurn();
  // Fills in what the handler gets. An error is the client's.
  absl::Status ReadRequest(const ParsedRequest& parsed, const Connection& connection,
                           Request* request) const;
  void Refuse(Responder* responder, int http_status, const absl::Status& status);
  Response NoHandler(const Router::Match& match, const Request& request) const;

  const Options options_;
  std::string address_;
  std::optional<TlsContexts> tls_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ =
      asio::make_work_guard(context_);
  std::vector<std::unique_ptr<tcp::acceptor>> acceptors_;
  std::vector<tcp::acceptor*> waiting_;  // for a connection to end
  absl::flat_hash_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::vector<std::weak_ptr<Connection>> spared_;  // the last is the next to go
  // Those whose turn comes: one request each.
  std::deque<std::shared_ptr<Connection>> queue_, probe_queue_;
  bool turn_is_posted_ = false;
  uint64_t accepted_ = 0;
  std::thread thread_;
  bool stopped_ = false;
  bool accepting_ = true;  // the last accept did not fail
};

absl::Status Server::Impl::Bind() {
  ListenOptions listen_options;
  listen_options.allow_remote_plaintext = options_.allow_remote || options_.tls != nullptr;
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

void Server::Impl::Start() {
  for (const auto& acceptor : acceptors_) Accept(acceptor.get());
  thread_ = std::thread([this] { context_.run(); });
}

void Server::Impl::Stop() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    stopped_ = true;
    work_.reset();
    for (const auto& acceptor : acceptors_) {
      error_code ignored;
      acceptor->close(ignored);
    }
    for (auto* queue : {&queue_, &probe_queue_}) std::exchange(*queue, {}).clear();
    // Each leaves the map as it closes.
    std::vector<std::shared_ptr<Connection>> open;
    open.reserve(connections_.size());
    for (const auto& [key, connection] : connections_) open.push_back(connection);
    const absl::Status stopping =
        WithRetryDelay(Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the server is stopping"),
                       absl::Seconds(1));
    for (const auto& connection : open) connection->Shutdown(stopping);
  });
  thread_.join();
}

Server::Statistics Server::Impl::Stats() {
  Statistics stats;
  stats.connections = counters().connections;
  stats.parked = counters().parked;
  stats.requests = counters().requests;
  stats.refused = counters().refused;
  stats.slow_closed = counters().slow_closed;
  stats.made_room = counters().made_room;
  for (size_t i = 0; i < kStatusClasses; ++i) stats.responses[i] = counters().responses[i];
  stats.duration_nanos = counters().duration_nanos.Snapshot();
  return stats;
}

// --- Connections come and go.

void Server::Impl::Accept(tcp::acceptor* acceptor) {
  if (connections_.size() > options_.max_connections) {
    waiting_.push_back(acceptor);
    return;
  }
  acceptor->async_accept([this, acceptor](const error_code& error, tcp::socket socket) {
    if (stopped_ || error == asio::error::operation_aborted) return;
    if (error) return AcceptLater(acceptor, error);
    OnAccept(acceptor, std::move(socket));
  });
}

void Server::Impl::OnAccept(tcp::acceptor* acceptor, tcp::socket socket) {
  accepting_ = true;
  std::shared_ptr<asio::ssl::context> tls;
  if (tls_.has_value()) {
    absl::StatusOr<std::shared_ptr<asio::ssl::context>> context = tls_->Current();
    if (!context.ok()) {
      Log(LogLevel::kError, absl::StrCat(options_.name, " takes no connections"),
          {{"error", std::string(context.status().message())}, {"address", address_}});
      return Accept(acceptor);
    }
    tls = *std::move(context);
  }
  if (connections_.size() >= options_.max_connections) MakeRoom();
  auto connection = std::make_shared<Connection>(shared_from_this(), std::move(socket),
                                                 std::move(tls), ++accepted_);
  connections_.emplace(connection.get(), connection);
  connection->Start();
  Accept(acceptor);
}

void Server::Impl::MakeRoom() {
  if (spared_.empty()) FindSpared();
  while (!spared_.empty()) {
    const std::shared_ptr<Connection> connection = spared_.back().lock();
    spared_.pop_back();
    if (connection == nullptr || connection->closed()) continue;
    if (connection->may_close()) {
      const auto waits = [&](const auto& queued) { return queued == connection; };
      for (auto* queue : {&queue_, &probe_queue_}) {
        queue->erase(std::remove_if(queue->begin(), queue->end(), waits), queue->end());
      }
      ++counters().made_room;
      return connection->Close();
    }
    // Its client asks again, and its place is free when it has the answer.
    if (connection->EndWait()) {
      ++counters().made_room;
      return;
    }
  }
}

void Server::Impl::FindSpared() {
  std::map<asio::ip::address, int> of_address;
  std::vector<Connection*> all;
  for (const auto& [connection, kept] : connections_) {
    ++of_address[connection->endpoint().address()];
    if (connection->may_close() || connection->may_end_wait()) all.push_back(connection);
  }
  const auto rank = [&](const Connection* connection) {
    return std::tuple(!connection->may_close(), -of_address[connection->endpoint().address()],
                      connection->number());
  };
  const size_t wanted =
      std::min(all.size(), std::max<size_t>(1, options_.max_connections / kSparedShare));
  std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(wanted), all.end(),
                    [&](const Connection* a, const Connection* b) { return rank(a) < rank(b); });
  for (size_t i = wanted; i > 0; --i) spared_.push_back(all[i - 1]->weak_from_this());
}

void Server::Impl::AcceptLater(tcp::acceptor* acceptor, const error_code& error) {
  if (std::exchange(accepting_, false)) {
    Log(LogLevel::kWarning, absl::StrCat(options_.name, " takes no connections"),
        {{"error", error.message()}, {"address", address_}});
  }
  const auto again = options_.timer->NewTimeout(
      [weak = weak_from_this(), acceptor] {
        const auto impl = weak.lock();
        if (impl == nullptr) return;
        asio::post(impl->context_, [impl = impl.get(), acceptor] {
          if (!impl->stopped_) impl->Accept(acceptor);
        });
      },
      kAcceptPause);
  if (!again.ok()) waiting_.push_back(acceptor);  // the process ends
}

void Server::Impl::Closed(Connection* connection) {
  connections_.erase(connection);
  if (stopped_) return;
  std::vector<tcp::acceptor*> waiting;
  waiting.swap(waiting_);
  for (tcp::acceptor* acceptor : waiting) Accept(acceptor);
}

// --- Requests take turns.

void Server::Impl::Queue(std::shared_ptr<Connection> connection, std::string_view path) {
  if (stopped_) return;
  const bool probe = !probes.empty() && probes.find(path) != probes.end();
  (probe ? probe_queue_ : queue_).push_back(std::move(connection));
  if (std::exchange(turn_is_posted_, true)) return;
  asio::post(context_, [this] { TakeTurn(); });
}

void Server::Impl::TakeTurn() {
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

absl::Status Server::Impl::ReadRequest(const ParsedRequest& parsed, const Connection& connection,
                                       Request* request) const {
  const std::string_view target = View(parsed.target());
  const size_t mark = target.find('?');
  request->path = std::string(target.substr(0, mark));
  request->method = parsed.method() == boost::beast::http::verb::head
                        ? "GET"
                        : std::string(View(parsed.method_string()));
  absl::StatusOr<std::vector<std::string>> segments = ParsePath(request->path);
  if (!segments.ok()) return segments.status();
  request->segments = *std::move(segments);
  if (mark != std::string_view::npos) {
    auto query = ParseQuery(target.substr(mark + 1));
    if (!query.ok()) return query.status();
    request->query = *std::move(query);
  }
  for (const auto& field : parsed) {
    request->headers.emplace_back(View(field.name_string()), View(field.value()));
  }
  request->body = parsed.body();
  request->peer = connection.endpoint().address().to_string();
  request->caller.peer = connection.peer();
  return absl::OkStatus();
}

void Server::Impl::Refuse(Responder* responder, int http_status, const absl::Status& status) {
  ++counters().refused;
  responder->Send(Error(http_status, status));
}

Response Server::Impl::NoHandler(const Router::Match& match, const Request& request) const {
  if (match.allowed.empty()) {
    return Error(404, Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                              absl::StrCat("there is no ", request.path, "; there are ",
                                           absl::StrJoin(router.paths(), ", "))));
  }
  const std::string allowed = absl::StrJoin(match.allowed, ", ");
  Response response = Error(405, Refusal(registry::v1::ERROR_REASON_UNSUPPORTED,
                                         absl::StrCat(request.path, " takes ", allowed)));
  response.headers.emplace_back("Allow", allowed);
  return response;
}

void Server::Impl::Dispatch(const ParsedRequest& parsed, Connection* connection,
                            Responder responder) {
  Request request;
  if (auto status = ReadRequest(parsed, *connection, &request); !status.ok()) {
    return Refuse(&responder, 400, status);
  }
  if (options_.admit != nullptr) {
    std::optional<Response> refused = options_.admit(connection->shown(), &request);
    connection->AddHeaders(std::move(request.response_headers));
    if (refused.has_value()) {
      ++counters().refused;
      return responder.Send(*std::move(refused));
    }
  }
  const Router::Match match = router.Find(request.method, request.segments);
  if (match.handler == nullptr) {
    ++counters().refused;
    return responder.Send(NoHandler(match, request));
  }
  request.parameters = match.parameters;
  try {
    (*match.handler)(request, std::move(responder));
  } catch (const std::exception& e) {
    // The responder has been dropped, and has answered.
    Log(LogLevel::kError, absl::StrCat(options_.name, ": a handler threw"),
        {{"path", request.path}, {"error", e.what()}});
  }
}

Server::Server(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Stop(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Bind(Options options) {
  if (options.timer == nullptr) return absl::InvalidArgumentError("timer: is required");
  auto impl = std::make_shared<Impl>(std::move(options));
  if (auto status = impl->Bind(); !status.ok()) return status;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Handle(const std::string& method, const std::string& pattern, Handler handler,
                    Turn turn) {
  impl_->router.Add(method, pattern, std::move(handler));
  if (turn == Turn::kProbe) impl_->probes.insert(pattern);
}

void Server::Start() { impl_->Start(); }

void Server::Stop() { impl_->Stop(); }

const std::string& Server::address() const { return impl_->address(); }

Server::Statistics Server::Stats() const { return impl_->Stats(); }

Executor* Server::executor() const { return impl_.get(); }

}  // namespace failback::http
