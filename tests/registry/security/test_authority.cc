#include "tests/registry/security/test_authority.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/util/process.h"

namespace failback {
namespace {

void Check(bool ok, const char* what) {
  if (!ok) Fatal(absl::StrCat("OpenSSL failed: ", what));
}

template <typename Write>
std::string Pem(const Write& write) {
  BIO* const bio = BIO_new(BIO_s_mem());
  Check(write(bio) == 1, "PEM");
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string PemOf(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  Check(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value.c_str());
  X509_EXTENSION_free(extension);
}

// Without signature and extensions.
X509* NewCertificate(const std::string& common_name, EVP_PKEY* key, absl::Duration begins,
                     absl::Duration ends) {
  static std::atomic<long> serial{1};
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate), absl::ToInt64Seconds(begins));
  X509_gmtime_adj(X509_getm_notAfter(certificate), absl::ToInt64Seconds(ends));
  X509_NAME* const name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  Check(X509_set_pubkey(certificate, key) == 1, "public key");
  return certificate;
}

}  // namespace

struct TestAuthority::Keys {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = nullptr;
};

TestAuthority::TestAuthority(const std::string& name) : keys_(std::make_unique<Keys>()) {
  Check(keys_->key != nullptr, "key");
  X509* const certificate = NewCertificate(name, keys_->key, -absl::Hours(2), absl::Hours(24));
  keys_->certificate = certificate;
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  Check(X509_sign(certificate, keys_->key, EVP_sha256()) != 0, "sign");
  cert_ = PemOf(certificate);
}

TestAuthority::~TestAuthority() {
  X509_free(keys_->certificate);
  EVP_PKEY_free(keys_->key);
}

TestAuthority::Pair TestAuthority::Issue(const Request& request) const {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  Check(key != nullptr, "key");
  X509* const certificate = NewCertificate(request.common_name, key, request.begins, request.ends);
  X509_set_issuer_name(certificate, X509_get_subject_name(keys_->certificate));
  std::vector<std::string> names;
  for (const std::string& uri : request.uris) names.push_back("URI:" + uri);
  for (const std::string& dns : request.dns) names.push_back("DNS:" + dns);
  for (const std::string& ip : request.ips) names.push_back("IP:" + ip);
  if (!names.empty()) {
    AddExtension(certificate, keys_->certificate, NID_subject_alt_name, absl::StrJoin(names, ","));
  }
  Check(X509_sign(certificate, keys_->key, EVP_sha256()) != 0, "sign");
  Pair pair;
  pair.cert = PemOf(certificate);
  pair.key = Pem([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  X509_free(certificate);
  EVP_PKEY_free(key);
  return pair;
}

TestAuthority::Pair TestAuthority::IssueServer() const {
  Request request;
  request.dns = {"localhost"};
  request.ips = {"127.0.0.1"};
  return Issue(request);
}

TestAuthority::Pair TestAuthority::IssueClient(const std::string& uri) const {
  Request request;
  request.uris = {uri};
  return Issue(request);
}

}  // namespace failback
