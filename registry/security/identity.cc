#include "registry/security/identity.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>

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

namespace {

std::string_view TextOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

void AddName(std::string_view name, Identity* identity) {
  // As gRPC: a name ends with the first NUL for nobody.
  const bool whole = name.find('\0') == std::string_view::npos;
  if (!name.empty() && whole && IsUtf8(name)) identity->names.emplace_back(name);
}

// The names of one kind among a certificate's subject alternative names.
void AddAlternativeNames(const GENERAL_NAMES* names, int type, Identity* identity) {
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names, i);
    if (name->type != type) continue;
    AddName(TextOf(type == GEN_URI ? name->d.uniformResourceIdentifier : name->d.dNSName),
            identity);
  }
}

void AddCommonName(X509_NAME* subject, Identity* identity) {
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return;
  unsigned char* utf8 = nullptr;
  const int size =
      ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  if (size < 0) return;
  AddName({reinterpret_cast<const char*>(utf8), static_cast<size_t>(size)}, identity);
  OPENSSL_free(utf8);
}

}  // namespace

Identity IdentityOfCertificate(const std::string& pem) {
  Identity identity;
  BIO* const in = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* const certificate = PEM_read_bio_X509(in, nullptr, nullptr, nullptr);
  BIO_free(in);
  if (certificate == nullptr) return identity;
  auto* const names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  if (names != nullptr) {
    AddAlternativeNames(names, GEN_URI, &identity);
    AddAlternativeNames(names, GEN_DNS, &identity);
    GENERAL_NAMES_free(names);
  }
  if (identity.names.empty()) AddCommonName(X509_get_subject_name(certificate), &identity);
  X509_free(certificate);
  if (!identity.names.empty()) identity.kind = Identity::Kind::kCertificate;
  return identity;
}

}  // namespace failback
