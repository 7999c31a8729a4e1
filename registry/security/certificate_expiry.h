// Certificates that are about to end: a server's own, and those that its clients show.
//
// What "soon" is: CertificateTimes::EndsSoon.
//
// A server sees what its clients show with their calls. CertificateWatch keeps, for each name and
// host, the end of the newest certificate: a client that shows a new one on a new connection is
// well, whatever older connections of it still have. What has not been seen for two hours is
// forgotten, which is longer than a connection lives.
//
// Example:
//
//   CertificateWatch watch;
//   watch.Note(name, host, pem, absl::Now());         // with each call
//   CertificateWatch::Summary summary = watch.Look(absl::Now());
//
// Thread safety: all methods from any thread.
//
// Invariants:
// 1. At most kMost pairs of a name and a host are kept, of 320 bytes each: further ones are neither
//    parsed nor counted until some are forgotten.
// 2. A certificate is parsed when it is new, not with each call, and without a lock.
// 3. The log reports an end once for each name, host and end, ten lines a second at most.

#ifndef FAILBACK_REGISTRY_SECURITY_CERTIFICATE_EXPIRY_H_
#define FAILBACK_REGISTRY_SECURITY_CERTIFICATE_EXPIRY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "registry/base/log.h"
#include "registry/security/tls_files.h"
#include "retry/mutex.h"

namespace failback {

class CertificateWatch {
 public:
  static constexpr size_t kMost = 16384;
  static constexpr size_t kListed = 20;

  // `most`: for tests.
  explicit CertificateWatch(size_t most = kMost) : most_(most) {}

  // Of a name at a host.
  struct Seen {
    std::string name;
    std::string host;
    absl::Time not_after;
    absl::Time seen;  // last
  };
  struct Summary {
    int64_t seen = 0;
    int64_t ending = 0;
    // The end of the one that ends first; infinite future when none was seen.
    absl::Time first = absl::InfiniteFuture();
    // Of those that end soon the first kListed, the soonest first.
    std::vector<Seen> soonest;
  };

  // `pem` is what a client called `name` has shown, from the address `peer`, as gRPC has both.
  void Note(absl::string_view name, absl::string_view peer, absl::string_view pem, absl::Time now);

  Summary Look(absl::Time now) const;

 private:
  struct Entry {
    CertificateTimes times;
    absl::Time seen;
    absl::Time logged_end = absl::InfinitePast();  // the end that was logged
    // Of the certificate that counts, and of another one that was seen beside it.
    size_t digest = 0;
    size_t other = 0;
  };
  // Forgets what was not seen for long, at most once a minute.
  void Forget(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t most_;
  mutable Mutex mu_;
  // By name and host, with '\n' between.
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  absl::Time forgot_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  LogThrottle log_;
};

// Logs once a day that this program's own certificate ends soon, for as long as it does; and at its
// end, and once a day from then on, that it has ended.
class OwnCertificateLog {
 public:
  // `of`: "server", or "upstream" for what is shown to a registry.
  explicit OwnCertificateLog(const char* of) : of_(of) {}

  void Look(const CertificateTimes& times, absl::Time now);

 private:
  const char* const of_;
  Mutex mu_;
  absl::Time told_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Time told_end_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // of one that has ended
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_CERTIFICATE_EXPIRY_H_
