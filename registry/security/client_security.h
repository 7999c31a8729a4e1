// How a client proves who it is, and knows whom it speaks to: TLS, its own certificate, a bearer
// token. All of them may be rotated while it runs.
//
// Nothing is cached beyond a second: each attempt to call resolves its credentials again. The files
// of TLS are looked at when a call is about to be made, at most once a second; when they have
// changed the call takes a new connection, and those that stand are left to the calls on them. The
// token is read for each call. So there is no timer and no thread here.
//
//   ClientSecurity::Options options;
//   options.tls.ca = "/etc/failback/ca.crt";
//   options.token_file = "/var/run/secrets/failback/token";
//   auto security = ClientSecurity::Create(options);
//   if (!security.ok()) return security.status();
//   …
//   channel = grpc::CreateChannel(address, (*security)->Current().credentials);
//   absl::Status status = (*security)->Authenticate(&context);
//
// Thread safety: all methods from any thread.
//
// Invariants:
// 1. Files that are refused change nothing: calls go on with what was there before.
// 2. A token is not written to any log, nor to a status.

#ifndef FAILBACK_REGISTRY_SECURITY_CLIENT_SECURITY_H_
#define FAILBACK_REGISTRY_SECURITY_CLIENT_SECURITY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "registry/security/certificate_expiry.h"
#include "registry/security/file_changes.h"
#include "registry/security/tls_files.h"
#include "retry/mutex.h"

namespace failback {

class ClientSecurity {
 public:
  struct Options {
    // With `ca` calls, but those to Unix sockets, are encrypted and the server has to show a
    // certificate that one of these authorities has signed. `cert` and `key`, which need `ca`, are
    // what this client shows.
    TlsFiles tls;
    // The name that the server's certificate has to have; empty: the host that is connected to.
    std::string server_name;
    // Holds a bearer token, sent with each call. Empty: none.
    std::string token_file;
  };

  // Reads the files. INVALID_ARGUMENT names the option and the path, as "ca: '/x' cannot be read:
  // …"; the names are those of TlsFiles, "server_name" and "token_file".
  static absl::StatusOr<std::shared_ptr<ClientSecurity>> Create(Options options);

  bool encrypted() const { return !options_.tls.ca.empty(); }
  bool has_token() const { return !options_.token_file.empty(); }
  const std::string& server_name() const { return options_.server_name; }

  // What a new connection takes. Connections made with an earlier version are not for new calls.
  struct Credentials {
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    uint64_t version = 0;
  };
  Credentials Current();

  // Adds the token to a call. UNAUTHENTICATED, naming the file, when there is none to be read now:
  // the next attempt may find one.
  absl::Status Authenticate(grpc::ClientContext* context) const;

  // Of the certificate that this client shows; without end when it shows none.
  CertificateTimes times() const;

 private:
  explicit ClientSecurity(Options options);
  absl::StatusOr<std::string> ReadToken() const;
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;

  mutable Mutex mu_;
  FileChanges changes_ ABSL_GUARDED_BY(mu_);
  absl::Time looked_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  TlsMaterial material_ ABSL_GUARDED_BY(mu_);
  absl::Status refused_ ABSL_GUARDED_BY(mu_);  // what is there now, and has been logged
  Credentials current_ ABSL_GUARDED_BY(mu_);
  OwnCertificateLog certificate_log_{"upstream"};
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_CLIENT_SECURITY_H_
