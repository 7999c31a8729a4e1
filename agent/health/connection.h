// A try that begins with a connection.

#ifndef FAILBACK_AGENT_HEALTH_CONNECTION_H_
#define FAILBACK_AGENT_HEALTH_CONNECTION_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/health/attempt.h"
#include "boost/asio/generic/stream_protocol.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/local/stream_protocol.hpp"
#include "registry/base/address.h"

namespace failback {

// One connection to an address: the first of its endpoints that accepts. All on the I/O thread.
class Connection : public Attempt {
 public:
  Connection(boost::asio::io_context& context, const Address& address, Probe::Done done)
      : Attempt(context, std::move(done)),
        address_(address),
        resolver_(context),
        socket_(context) {}

 protected:
  virtual void Connected() { Finish(absl::OkStatus()); }

  void Fail(const char* step, const boost::system::error_code& error) {
    Finish(absl::UnavailableError(
        absl::StrCat(address_.ToString(), ": ", step, ": ", error.message())));
  }

  std::shared_ptr<Connection> shared() {
    return std::static_pointer_cast<Connection>(shared_from_this());
  }

  const Address& address() const { return address_; }
  boost::asio::generic::stream_protocol::socket& socket() { return socket_; }

 private:
  void Start() override {
    if (address_.is_unix()) {
      endpoints_ = {boost::asio::local::stream_protocol::endpoint(address_.path)};
      return ConnectNext(boost::system::error_code());
    }
    boost::system::error_code not_literal;
    const auto literal = boost::asio::ip::make_address(address_.host, not_literal);
    if (!not_literal) {
      endpoints_ = {boost::asio::ip::tcp::endpoint(literal, static_cast<uint16_t>(address_.port))};
      return ConnectNext(boost::system::error_code());
    }
    resolver_.async_resolve(
        address_.host, std::to_string(address_.port),
        boost::asio::ip::tcp::resolver::numeric_service,
        [self = shared()](const boost::system::error_code& error,
                          const boost::asio::ip::tcp::resolver::results_type& results) {
          if (self->finished()) return;
          if (error) return self->Fail("resolve", error);
          for (const auto& result : results) self->endpoints_.emplace_back(result.endpoint());
          self->ConnectNext(boost::asio::error::host_not_found);
        });
  }

  // `last` is why the endpoint before was not it.
  void ConnectNext(const boost::system::error_code& last) {
    if (next_ >= endpoints_.size()) return Fail("connect", last);
    boost::system::error_code ignored;
    socket_.close(ignored);
    socket_.async_connect(endpoints_[next_++],
                          [self = shared()](const boost::system::error_code& error) {
                            if (self->finished()) return;
                            if (error) return self->ConnectNext(error);
                            self->Connected();
                          });
  }

  void Close() override {
    resolver_.cancel();
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  const Address address_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::generic::stream_protocol::socket socket_;
  std::vector<boost::asio::generic::stream_protocol::endpoint> endpoints_;
  size_t next_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_CONNECTION_H_
