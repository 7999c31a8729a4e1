// TLS for a gRPC server, with certificates that are rotated while it serves.
//
// gRPC asks for the certificate at each new connection (its certificate config fetcher); what it
// gets is the newest pair that passed the checks of registry/security/tls_files.h. A connection
// that stands keeps the certificate it began with. gRPC's own FileWatcherCertificateProvider is
// not used: it sleeps in a thread of its own, and hands out a pair that does not match, so that
// every handshake fails until it is repaired.
//
// TLS 1.2 and 1.3, no older.
//
//   ServerTls::Options options;
//   options.files = {"", "tls.crt", "tls.key"};
//   absl::StatusOr<std::shared_ptr<ServerTls>> tls = ServerTls::Create(options);
//   if (!tls.ok()) return tls.status();
//   builder.AddListeningPort(address, (*tls)->credentials(), &port);
//   …
//   (*tls)->Reload();                            // from time to time
//
// Thread safety: all methods from any thread.
//
// Invariant: a pair that was refused is never shown, whatever came before or comes after.

#ifndef FAILBACK_REGISTRY_SECURITY_SERVER_TLS_H_
#define FAILBACK_REGISTRY_SECURITY_SERVER_TLS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "registry/security/file_changes.h"
#include "registry/security/tls_files.h"
#include "retry/mutex.h"

namespace failback {

// Whether clients show a certificate. One that is shown has to be signed by TlsFiles::ca.
enum class ClientCertificates { kOff, kOptional, kRequired };

class ServerTls {
 public:
  struct Options {
    // `cert` and `key` are required, `ca` with client certificates.
    TlsFiles files;
    ClientCertificates client_certificates = ClientCertificates::kOff;
  };

  // Reads the files. INVALID_ARGUMENT as ReadTlsFiles.
  static absl::StatusOr<std::shared_ptr<ServerTls>> Create(Options options);

  // For any number of servers, which may outlive this.
  std::shared_ptr<grpc::ServerCredentials> credentials() const { return credentials_; }

  // What new connections are shown, for servers beside gRPC's. `version` is another one after each
  // change.
  struct Shown {
    TlsMaterial material;
    ClientCertificates client_certificates;
    uint64_t version;
  };
  Shown shown() const;
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // Looks whether the files have changed, and takes what is there now for new connections. True:
  // taken. False: nothing new. An error, as of Create: what is there is refused, and the old pair
  // stays; the same content is refused aloud once.
  absl::StatusOr<bool> Reload();

  // Of the certificate that is shown.
  CertificateTimes times() const;

 private:
  class Credentials;
  class Source;

  explicit ServerTls(Options options);

  const Options options_;
  const std::shared_ptr<Source> source_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;

  mutable Mutex mu_;
  FileChanges changes_ ABSL_GUARDED_BY(mu_);
  TlsMaterial material_ ABSL_GUARDED_BY(mu_);
  absl::Status refused_ ABSL_GUARDED_BY(mu_);  // what is there now, and has been logged
  std::atomic<uint64_t> version_{0};           // of material_
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_SERVER_TLS_H_
