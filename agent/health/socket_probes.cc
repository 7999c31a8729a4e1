#include "agent/health/socket_probes.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/health/attempt.h"
#include "agent/health/io_thread.h"
#include "boost/asio/generic/stream_protocol.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/local/stream_protocol.hpp"
#include "boost/asio/post.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http.hpp"
#include "registry/version.h"

namespace failback {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::generic::stream_protocol;
using asio::ip::tcp;
using boost::system::error_code;

// One connection to an address: the first of its endpoints that accepts. All on the I/O thread.
class Connection : public Attempt {
 public:
  Connection(asio::io_context& context, const Address& address, Probe::Done done)
      : Attempt(context, std::move(done)),
        address_(address),
        resolver_(context),
        socket_(context) {}

 protected:
  virtual void Connected() { Finish(absl::OkStatus()); }

  void Fail(const char* step, const error_code& error) {
    Finish(absl::UnavailableError(
        absl::StrCat(address_.ToString(), ": ", step, ": ", error.message())));
  }

  std::shared_ptr<Connection> shared() {
    return std::static_pointer_cast<Connection>(shared_from_this());
  }

  const Address& address() const { return address_; }
  stream_protocol::socket& socket() { return socket_; }

 private:
  void Start() override {
    if (address_.is_unix()) {
      endpoints_ = {asio::local::stream_protocol::endpoint(address_.path)};
      return ConnectNext(error_code());
    }
    error_code not_literal;
    const auto literal = asio::ip::make_address(address_.host, not_literal);
    if (!not_literal) {
      endpoints_ = {tcp::endpoint(literal, static_cast<uint16_t>(address_.port))};
      return ConnectNext(error_code());
    }
    resolver_.async_resolve(
        address_.host, std::to_string(address_.port), tcp::resolver::numeric_service,
        [self = shared()](const error_code& error, const tcp::resolver::results_type& results) {
          if (self->finished()) return;
          if (error) return self->Fail("resolve", error);
          for (const auto& result : results) self->endpoints_.emplace_back(result.endpoint());
          self->ConnectNext(asio::error::host_not_found);
        });
  }

  // `last` is why the endpoint before was not it.
  void ConnectNext(const error_code& last) {
    if (next_ >= endpoints_.size()) return Fail("connect", last);
    error_code ignored;
    socket_.close(ignored);
    socket_.async_connect(endpoints_[next_++], [self = shared()](const error_code& error) {
      if (self->finished()) return;
      if (error) return self->ConnectNext(error);
      self->Connected();
    });
  }

  void Close() override {
    resolver_.cancel();
    error_code ignored;
    socket_.close(ignored);
  }

  const Address address_;
  tcp::resolver resolver_;
  stream_protocol::socket socket_;
  std::vector<stream_protocol::endpoint> endpoints_;
  size_t next_ = 0;
};

// A request, and the head of its answer; the body is not read.
class HttpExchange final : public Connection {
 public:
  HttpExchange(asio::io_context& context, const Address& address, const HttpQuestion& question,
               Probe::Done done)
      : Connection(context, address, std::move(done)), expect_status_(question.expect_status) {
    request_.method_string(question.method);
    request_.target(question.path);
    request_.version(11);
    request_.set(http::field::host, !question.host.empty() ? question.host
                                    : address.is_unix()    ? std::string("localhost")
                                                           : address.ToString());
    request_.set(http::field::user_agent, absl::StrCat("failback-agent/", kVersion));
    request_.set(http::field::connection, "close");
    for (const auto& [name, value] : question.headers) request_.set(name, value);
  }

 private:
  std::shared_ptr<HttpExchange> shared() {
    return std::static_pointer_cast<HttpExchange>(shared_from_this());
  }

  void Connected() override {
    http::async_write(socket(), request_, [self = shared()](const error_code& error, size_t) {
      if (self->finished()) return;
      if (error) return self->Fail("send", error);
      self->ReadAnswer();
    });
  }

  void ReadAnswer() {
    parser_.skip(true);
    http::async_read_header(socket(), buffer_, parser_,
                            [self = shared()](const error_code& error, size_t) {
                              if (self->finished()) return;
                              if (error) return self->Fail("receive", error);
                              self->Judge(self->parser_.get().result_int());
                            });
  }

  void Judge(unsigned status) {
    const bool well =
        expect_status_ != 0 ? status == expect_status_ : status >= 200 && status <= 399;
    if (well) return Finish(absl::OkStatus());
    Finish(absl::UnavailableError(
        absl::StrCat(address().ToString(), std::string(request_.target()), ": status ", status,
                     expect_status_ != 0 ? absl::StrCat(", not ", expect_status_) : "")));
  }

  const unsigned expect_status_;
  http::request<http::empty_body> request_;
  boost::beast::flat_buffer buffer_;
  http::response_parser<http::empty_body> parser_;
};

}  // namespace

std::unique_ptr<Probe> NewTcpProbe(IoThread* io, const Address& address) {
  return std::make_unique<AttemptProbe>(io, [address](asio::io_context& context, Probe::Done done) {
    return std::make_shared<Connection>(context, address, std::move(done));
  });
}

std::unique_ptr<Probe> NewHttpProbe(IoThread* io, const Address& address,
                                    const HttpQuestion& question) {
  return std::make_unique<AttemptProbe>(
      io, [address, question](asio::io_context& context, Probe::Done done) {
        return std::make_shared<HttpExchange>(context, address, question, std::move(done));
      });
}

}  // namespace failback
