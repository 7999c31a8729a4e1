#include "registry/security/server_tls.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"

namespace failback {
namespace {

grpc_ssl_client_certificate_request_type RequestType(ClientCertificates certificates) {
  switch (certificates) {
    case ClientCertificates::kOptional:
      return GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
    case ClientCertificates::kRequired:
      return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    default:
      return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  }
}

}  // namespace

// What new connections are shown.
class ServerTls::Source {
 public:
  explicit Source(const TlsMaterial& material) : material_(material) {}

  void Set(const TlsMaterial& material) {
    MutexLock lock(&mu_);
    material_ = material;
    ++version_;
  }

  // The newest, unless it is the one that was `given` already.
  grpc_ssl_certificate_config_reload_status Get(uint64_t* given,
                                                grpc_ssl_server_certificate_config** config) {
    MutexLock lock(&mu_);
    if (*given == version_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {material_.key.c_str(), material_.cert.c_str()};
    // gRPC (1.51) aborts the program when there are no authorities, even where clients are asked
    // for nothing: then it gets some that no client is compared with.
    const std::string& authorities = material_.ca.empty() ? material_.cert : material_.ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    *given = version_;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

 private:
  Mutex mu_;
  TlsMaterial material_ ABSL_GUARDED_BY(mu_);
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 1;
};

// gRPC's C++ API has no certificate config fetcher; its C API has.
class ServerTls::Credentials final : public grpc::ServerCredentials {
 public:
  Credentials(std::shared_ptr<Source> source, ClientCertificates certificates)
      : source_(std::move(source)), certificates_(certificates) {}

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  // One listening address, which has its own copy of what was fetched last.
  struct Listener {
    std::shared_ptr<Source> source;
    uint64_t given = 0;  // guarded by the lock that gRPC holds while it fetches
  };

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    auto* const listener = new Listener{source_};
    Keep(listener);
    grpc_server_credentials* const credentials = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(RequestType(certificates_),
                                                                        &Fetch, listener));
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* listener, grpc_ssl_server_certificate_config** config) {
    auto* const self = static_cast<Listener*>(listener);
    return self->source->Get(&self->given, config);
  }

  // gRPC holds a plain pointer, also in handshakes that outlive the server and whose end is not
  // reported: what it points to stays, reachable for leak checkers. A process has a few.
  static void Keep(Listener* listener) {
    static auto* const mu = new Mutex;
    static auto* const kept = new std::vector<Listener*>;
    MutexLock lock(mu);
    kept->push_back(listener);
  }

  const std::shared_ptr<Source> source_;
  const ClientCertificates certificates_;
};

absl::StatusOr<std::shared_ptr<ServerTls>> ServerTls::Create(Options options) {
  if (options.files.cert.empty()) {
    return absl::InvalidArgumentError("cert: is required: a TLS server shows a certificate");
  }
  const bool asks = options.client_certificates != ClientCertificates::kOff;
  if (asks && options.files.ca.empty()) {
    return absl::InvalidArgumentError(
        "ca: is required with client certificates: it says whose are trusted");
  }
  auto tls = std::shared_ptr<ServerTls>(new ServerTls(std::move(options)));
  absl::StatusOr<bool> loaded = tls->Reload();
  if (!loaded.ok()) return loaded.status();
  return tls;
}

ServerTls::ServerTls(Options options)
    : options_(std::move(options)),
      source_(std::make_shared<Source>(TlsMaterial())),
      credentials_(std::make_shared<Credentials>(source_, options_.client_certificates)),
      changes_(options_.files.paths()) {}

absl::StatusOr<bool> ServerTls::Reload() {
  MutexLock lock(&mu_);
  if (!changes_.Check()) return false;
  absl::StatusOr<TlsMaterial> material = ReadTlsFiles(options_.files);
  if (!material.ok()) {
    if (material.status() == refused_) return false;
    refused_ = material.status();
    return refused_;
  }
  refused_ = absl::OkStatus();
  if (*material == material_) return false;
  material_ = *std::move(material);
  source_->Set(material_);
  version_.fetch_add(1, std::memory_order_release);
  return true;
}

ServerTls::Shown ServerTls::shown() const {
  MutexLock lock(&mu_);
  return {material_, options_.client_certificates, version()};
}

CertificateTimes ServerTls::times() const {
  MutexLock lock(&mu_);
  return material_.times;
}

}  // namespace failback
