#include "registry/security/tls_files.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "registry/base/small_file.h"

namespace failback {
namespace {

// A certificate that ends later than this does not end soon.
constexpr absl::Duration kSoon = absl::Hours(24 * 14);

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using X509Ptr = std::unique_ptr<X509, Freer<X509_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

absl::Status Problem(const char* field, const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": '", path, "' ", what));
}

BioPtr NewBio(std::string_view text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// A key with a passphrase is refused, instead of asked for at the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

std::vector<X509Ptr> ParseCertificates(const std::string& pem) {
  std::vector<X509Ptr> certificates;
  const BioPtr bio = NewBio(pem);
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(certificate);
  }
  ERR_clear_error();  // the last one's: there is no further certificate
  return certificates;
}

absl::Time FromAsn1(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

CertificateTimes TimesOf(const X509* certificate) {
  return {FromAsn1(X509_get0_notBefore(certificate)), FromAsn1(X509_get0_notAfter(certificate))};
}

std::string Written(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

// What is wrong with a certificate's time; empty: nothing.
std::string TimeProblem(const X509* certificate) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0) {
    return absl::StrCat("ended on ", Written(FromAsn1(X509_get0_notAfter(certificate))),
                        "; a certificate that is valid now is needed");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return absl::StrCat("begins on ", Written(FromAsn1(X509_get0_notBefore(certificate))),
                        "; a certificate that is valid now is needed");
  }
  return "";
}

// OpenSSL's reason for the failure of the last call.
std::string TakeError() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown reason" : reason;
}

absl::StatusOr<std::string> Read(const char* field, const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok()) return text;
  return Problem(field, path, std::string(text.status().message()));
}

absl::Status CheckAuthorities(const TlsFiles& files, const TlsMaterial& material) {
  const std::vector<X509Ptr> authorities = ParseCertificates(material.ca);
  if (authorities.empty()) {
    return Problem("ca", files.ca, "holds no certificate; allowed are certificates in PEM form");
  }
  std::string problem;
  for (const X509Ptr& authority : authorities) {
    problem = TimeProblem(authority.get());
    if (problem.empty()) return absl::OkStatus();  // one that is valid will do
  }
  return Problem("ca", files.ca, problem);
}

absl::Status CheckPair(const TlsFiles& files, TlsMaterial* material) {
  const std::vector<X509Ptr> chain = ParseCertificates(material->cert);
  if (chain.empty()) {
    return Problem("cert", files.cert,
                   "holds no certificate; allowed is a certificate in PEM form, with those between "
                   "it and its authority after it");
  }
  if (const std::string problem = TimeProblem(chain[0].get()); !problem.empty()) {
    return Problem("cert", files.cert, problem);
  }
  const BioPtr bio = NewBio(material->key);
  const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return Problem("key", files.key,
                   "holds no private key that can be read; allowed is one in PEM form without a "
                   "passphrase");
  }
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return Problem("key", files.key,
                   absl::StrCat("does not belong to the certificate in '", files.cert, "'"));
  }
  // What else TLS itself would refuse at the first handshake, as a key that is too short.
  const ContextPtr context(SSL_CTX_new(TLS_method()));
  if (context == nullptr || SSL_CTX_use_certificate(context.get(), chain[0].get()) != 1 ||
      SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1) {
    return Problem("cert", files.cert, absl::StrCat("cannot be used for TLS: ", TakeError()));
  }
  material->times = TimesOf(chain[0].get());
  return absl::OkStatus();
}

}  // namespace

bool CertificateTimes::EndsSoon(absl::Time now) const {
  if (not_after == absl::InfiniteFuture()) return false;
  const absl::Duration left = not_after - now;
  return left < kSoon && left < (not_after - not_before) / 3;
}

CertificateTimes TimesOfCertificate(std::string_view pem) {
  const BioPtr bio = NewBio(pem);
  const X509Ptr certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return certificate == nullptr ? CertificateTimes{absl::InfinitePast(), absl::InfinitePast()}
                                : TimesOf(certificate.get());
}

std::vector<std::string> TlsFiles::paths() const {
  std::vector<std::string> used;
  for (const std::string* path : {&ca, &cert, &key}) {
    if (!path->empty()) used.push_back(*path);
  }
  return used;
}

absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files) {
  if (files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        files.key.empty() ? "key: is required with cert: a certificate is shown with its key"
                          : "cert: is required with key: a key is used with its certificate");
  }
  TlsMaterial material;
  const struct {
    const char* field;
    const std::string& path;
    std::string* text;
  } kRead[] = {{"ca", files.ca, &material.ca},
               {"cert", files.cert, &material.cert},
               {"key", files.key, &material.key}};
  for (const auto& read : kRead) {
    if (read.path.empty()) continue;
    absl::StatusOr<std::string> text = Read(read.field, read.path);
    if (!text.ok()) return text.status();
    *read.text = *std::move(text);
  }
  if (!files.ca.empty()) {
    if (absl::Status status = CheckAuthorities(files, material); !status.ok()) return status;
  }
  if (!files.cert.empty()) {
    if (absl::Status status = CheckPair(files, &material); !status.ok()) return status;
  }
  return material;
}

}  // namespace failback
