#include "registry/security/identity.h"

#include <openssl/sha.h>

#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "grpc/grpc_security_constants.h"
#include "registry/base/utf8.h"

namespace failback {

std::string Sha256(const std::string& text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

std::string Identity::ToString() const {
  switch (kind) {
    case Kind::kCertificate:
      return absl::StrCat("certificate ", names.front());
    case Kind::kToken:
      return absl::StrCat("token ", names.front());
    default:
      return "anonymous";
  }
}

std::string Identity::OwnerTag() const {
  return absl::WebSafeBase64Escape(Sha256(ToString()).substr(0, 12));
}

Identity IdentityOfPeer(const grpc::AuthContext& context) {
  Identity identity;
  const auto add = [&](const char* property) {
    for (const grpc::string_ref& value : context.FindPropertyValues(property)) {
      const std::string_view name(value.data(), value.size());
      if (!name.empty() && IsUtf8(name)) identity.names.emplace_back(name);
    }
  };
  add(GRPC_PEER_URI_PROPERTY_NAME);
  add(GRPC_PEER_DNS_PROPERTY_NAME);
  if (identity.names.empty()) add(GRPC_X509_CN_PROPERTY_NAME);
  if (!identity.names.empty()) identity.kind = Identity::Kind::kCertificate;
  return identity;
}

}  // namespace failback
