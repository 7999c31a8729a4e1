// Who makes a call: the bearer of a token, the owner of a client certificate, or anonymous.
//
// A token that comes with a call decides, as it is the program's own; a certificate may be that of
// the machine. A certificate's names are the URIs and DNS names among its subject alternative
// names, or its common name if it has neither. A name that is not UTF-8 is none: no message could
// carry it.
//
// Thread safety: plain values.

#ifndef FAILBACK_REGISTRY_SECURITY_IDENTITY_H_
#define FAILBACK_REGISTRY_SECURITY_IDENTITY_H_

#include <string>
#include <vector>

#include "grpcpp/security/auth_context.h"

namespace failback {

struct Identity {
  enum class Kind { kAnonymous, kCertificate, kToken };

  Kind kind = Kind::kAnonymous;
  // At least one, unless anonymous. The first is how the caller is called.
  std::vector<std::string> names;
  // Of a token: its SHA-256 digest, to see later whether it is still accepted.
  std::string token_digest;
  // Where the call came from, for the log: "ipv4:10.0.0.7:40112". Empty: not known.
  std::string peer = {};

  // "certificate spiffe://prod/orders", "token ci", "anonymous".
  std::string ToString() const;
  // Names the identity in a session's id: 16 characters of web-safe base64. The same for each
  // certificate or token of one name.
  std::string OwnerTag() const;
};

// By the client certificate of a connection; anonymous if there is none.
Identity IdentityOfPeer(const grpc::AuthContext& context);

// By a certificate in PEM that was verified, as the other does; anonymous if it has no name.
Identity IdentityOfCertificate(const std::string& pem);

// The SHA-256 digest of `text`, 32 bytes.
std::string Sha256(const std::string& text);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_IDENTITY_H_
