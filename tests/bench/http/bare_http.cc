// The peer: the least that a server of Boost.Beast does. `GET` is parked until `POST /release`,
// whose body all get; `PUT` parses its body as a ServiceInstance in JSON and answers `{}`.

#include <sys/resource.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "failback/registry/v1/registry.pb.h"
#include "google/protobuf/util/json_util.h"

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

class Session;
std::unordered_set<std::shared_ptr<Session>>* const parked =
    new std::unordered_set<std::shared_ptr<Session>>;

class Session : public std::enable_shared_from_this<Session> {
 public:
  explicit Session(tcp::socket socket) : stream_(std::move(socket)) {}

  void Read() {
    request_ = {};
    stream_.expires_after(std::chrono::seconds(600));
    http::async_read(stream_, buffer_, request_,
                     [self = shared_from_this()](beast::error_code error, size_t) {
                       if (!error) self->Handle();
                     });
  }

  void Answer(const std::string& body) {
    auto response = std::make_shared<http::response<http::string_body>>(http::status::ok, 11);
    response->set(http::field::content_type, "application/json");
    response->body() = body;
    response->prepare_payload();
    http::async_write(stream_, *response,
                      [self = shared_from_this(), response](beast::error_code error, size_t) {
                        if (!error) self->Read();
                      });
  }

 private:
  void Handle() {
    if (request_.method() == http::verb::get) {
      parked->insert(shared_from_this());
      return;
    }
    if (request_.method() == http::verb::put) {
      failback::registry::v1::ServiceInstance instance;
      if (!google::protobuf::util::JsonStringToMessage(request_.body(), &instance).ok()) return;
      return Answer("{}");
    }
    std::unordered_set<std::shared_ptr<Session>> released;
    released.swap(*parked);
    for (const auto& session : released) session->Answer(request_.body());
    Answer("{}");
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
};

void Accept(tcp::acceptor* acceptor) {
  acceptor->async_accept([acceptor](beast::error_code error, tcp::socket socket) {
    if (!error) {
      socket.set_option(tcp::no_delay(true));
      std::make_shared<Session>(std::move(socket))->Read();
    }
    Accept(acceptor);
  });
}

}  // namespace

int main() {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  asio::io_context context{1};
  tcp::acceptor acceptor(context, {asio::ip::make_address("127.0.0.1"), 0});
  acceptor.listen(4096);
  std::cout << "listening on " << acceptor.local_endpoint().port() << std::endl;
  Accept(&acceptor);
  context.run();
}
