// Certificates and keys in PEM files, read and checked before they are used.
//
// gRPC takes any text for a certificate and fails later, at each handshake, with a line in its own
// log. Here a pair is looked at first: that the files can be read, hold what they should, belong
// together and are valid now. What is refused says which file, why, and what is allowed:
//
//   key: '/etc/failback/tls.key' does not belong to the certificate in '/etc/failback/tls.crt'
//
// Example:
//
//   absl::StatusOr<TlsMaterial> material = ReadTlsFiles({.cert = "tls.crt", .key = "tls.key"});
//   if (!material.ok()) return material.status();
//
// Thread safety: all functions may be called from any thread.

#ifndef FAILBACK_REGISTRY_SECURITY_TLS_FILES_H_
#define FAILBACK_REGISTRY_SECURITY_TLS_FILES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace failback {

// Paths of PEM files. An empty one is not used.
struct TlsFiles {
  // Certificates of the authorities whose peers are trusted.
  std::string ca;
  // What this side shows: its certificate, followed by those between it and its authority.
  std::string cert;
  // The private key of `cert`, not encrypted.
  std::string key;

  // Those that are used.
  std::vector<std::string> paths() const;
};

// When a certificate is valid.
struct CertificateTimes {
  absl::Time not_before = absl::InfinitePast();
  absl::Time not_after = absl::InfiniteFuture();

  // Whether less than a third of its time is left, and less than 14 days. So one that lives for an
  // hour and is replaced in time is no news, and one of a year is logged two weeks before.
  bool EndsSoon(absl::Time now) const;

  friend bool operator==(const CertificateTimes& a, const CertificateTimes& b) {
    return a.not_before == b.not_before && a.not_after == b.not_after;
  }
};

// The content of the files.
struct TlsMaterial {
  std::string ca;
  std::string cert;
  std::string key;
  // Of the certificate in `cert`.
  CertificateTimes times;

  friend bool operator==(const TlsMaterial& a, const TlsMaterial& b) {
    return a.ca == b.ca && a.cert == b.cert && a.key == b.key;
  }
};

// Reads the files that are named. INVALID_ARGUMENT opens with the field of TlsFiles, as
// "cert: '/x.crt' ended on 2026-01-31 12:00:00 UTC; a certificate that is valid now is needed".
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files);

// Of the first certificate in `pem`; the infinite past for what is none.
CertificateTimes TimesOfCertificate(std::string_view pem);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_TLS_FILES_H_
