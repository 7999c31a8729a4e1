#include "agent/health/http_probe.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "agent/health/connection.h"
#include "agent/health/io_thread.h"
#include "boost/asio/ssl.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http.hpp"
#include "openssl/ssl.h"
#include "openssl/x509_vfy.h"
#include "registry/base/version.h"
#include "registry/security/file_changes.h"

namespace failback {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using asio::generic::stream_protocol;
using boost::system::error_code;

// A request, and the head of its answer; the body is not read.
class HttpExchange : public Connection {
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

 protected:
  void Connected() override { Exchange(&socket()); }

  // `stream` is part of this object.
  template <typename Stream>
  void Exchange(Stream* stream) {
    http::async_write(*stream, request_,
                      [self = shared(), stream](const error_code& error, size_t) {
                        if (self->finished()) return;
                        if (error) return self->Fail("send", error);
                        self->ReadAnswer(stream);
                      });
  }

 private:
  std::shared_ptr<HttpExchange> shared() {
    return std::static_pointer_cast<HttpExchange>(shared_from_this());
  }

  template <typename Stream>
  void ReadAnswer(Stream* stream) {
    parser_.skip(true);
    http::async_read_header(*stream, buffer_, parser_,
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

// Whom a server has to be, and who says so. The file of authorities is read again when it has
// changed. Used by the I/O thread alone.
class TlsTrust {
 public:
  explicit TlsTrust(HttpTls options) : options_(std::move(options)), changes_({options_.ca}) {}

  absl::StatusOr<std::shared_ptr<ssl::context>> Context() {
    if (changes_.Check() || context_ == nullptr) {
      context_ = nullptr;
      auto made = std::make_shared<ssl::context>(ssl::context::tls_client);
      made->set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
      error_code error;
      if (options_.skip_verify) {
        made->set_verify_mode(ssl::verify_none);
      } else {
        made->set_verify_mode(ssl::verify_peer);
        if (options_.ca.empty()) {
          made->set_default_verify_paths(error);
        } else {
          made->load_verify_file(options_.ca, error);
        }
      }
      if (error) {
        return absl::FailedPreconditionError(absl::StrCat(
            "tls.ca: ", options_.ca, ": no certificates can be read: ", error.message()));
      }
      context_ = std::move(made);
    }
    return context_;
  }

  const HttpTls& options() const { return options_; }

 private:
  const HttpTls options_;
  FileChanges changes_;
  std::shared_ptr<ssl::context> context_;
};

class HttpsExchange final : public HttpExchange {
 public:
  HttpsExchange(asio::io_context& context, const Address& address, const HttpQuestion& question,
                std::shared_ptr<TlsTrust> trust, Probe::Done done)
      : HttpExchange(context, address, question, std::move(done)), trust_(std::move(trust)) {}

 private:
  std::shared_ptr<HttpsExchange> shared() {
    return std::static_pointer_cast<HttpsExchange>(shared_from_this());
  }

  // The name that the certificate has to have.
  std::string ServerName() const {
    if (!trust_->options().server_name.empty()) return trust_->options().server_name;
    return address().is_unix() ? "localhost" : address().host;
  }

  void Connected() override {
    absl::StatusOr<std::shared_ptr<ssl::context>> context = trust_->Context();
    if (!context.ok()) return Finish(context.status());
    context_ = *std::move(context);
    stream_.emplace(socket(), *context_);
    Expect(ServerName(), stream_->native_handle());
    stream_->async_handshake(ssl::stream_base::client, [self = shared()](const error_code& error) {
      if (self->finished()) return;
      if (error) return self->HandshakeFailed(error);
      self->Exchange(&*self->stream_);
    });
  }

  // Asks for the server by name, and for a certificate of that name or IP address.
  static void Expect(const std::string& name, SSL* connection) {
    error_code is_no_ip;
    asio::ip::make_address(name, is_no_ip);
    if (is_no_ip) {
      SSL_set_tlsext_host_name(connection, name.c_str());
      SSL_set1_host(connection, name.c_str());
    } else {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection), name.c_str());
    }
  }

  void HandshakeFailed(const error_code& error) {
    const long verified =
        SSL_get_verify_result(stream_->native_handle());  // NOLINT: OpenSSL's type
    if (verified == X509_V_OK) return Fail("TLS", error);
    Finish(absl::UnavailableError(absl::StrCat(address().ToString(), ": certificate refused for ",
                                               ServerName(), ": ",
                                               X509_verify_cert_error_string(verified))));
  }

  const std::shared_ptr<TlsTrust> trust_;
  std::shared_ptr<ssl::context> context_;
  std::optional<ssl::stream<stream_protocol::socket&>> stream_;
};

}  // namespace

std::unique_ptr<Probe> NewHttpProbe(IoThread* io, const Address& address,
                                    const HttpQuestion& question) {
  if (!question.tls.has_value()) {
    return std::make_unique<AttemptProbe>(
        io, [address, question](asio::io_context& context, Probe::Done done) {
          return std::make_shared<HttpExchange>(context, address, question, std::move(done));
        });
  }
  return std::make_unique<AttemptProbe>(
      io, [address, question, trust = std::make_shared<TlsTrust>(*question.tls)](
              asio::io_context& context, Probe::Done done) {
        return std::make_shared<HttpsExchange>(context, address, question, trust, std::move(done));
      });
}

}  // namespace failback
