// TLS of an HTTP server's connections, with the certificates that gRPC's connections are shown.
//
// The context is made again when ServerTls has taken another pair; a connection keeps the one that
// it began with.
//
// Thread safety: TlsContexts on one thread; ClientOf is pure.

#ifndef FAILBACK_GATEWAY_HTTP_TLS_H_
#define FAILBACK_GATEWAY_HTTP_TLS_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "boost/asio/ssl/context.hpp"
#include "gateway/http/server.h"
#include "registry/security/server_tls.h"

namespace failback::http {

class TlsContexts {
 public:
  explicit TlsContexts(std::shared_ptr<ServerTls> tls) : tls_(std::move(tls)) {}

  // For a new connection. INTERNAL says what OpenSSL does not take.
  absl::StatusOr<std::shared_ptr<boost::asio::ssl::context>> Current();

 private:
  const std::shared_ptr<ServerTls> tls_;
  uint64_t version_ = 0;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

// What the client of a connection has shown, after its handshake.
Shown ShownBy(SSL* connection);

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_TLS_H_
