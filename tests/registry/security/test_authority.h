// Certificates for tests: an authority of the test's own that signs what a test needs, also what no
// real authority would.
//
//   const TestAuthority ca("ca");
//   const TestAuthority::Pair pair = ca.Issue({.dns = {"localhost"}});
//   dir.Write("tls.crt", pair.cert);
//   dir.Write("tls.key", pair.key);
//
// Thread safety: const methods from any thread.

#ifndef FAILBACK_TESTS_REGISTRY_SECURITY_TEST_AUTHORITY_H_
#define FAILBACK_TESTS_REGISTRY_SECURITY_TEST_AUTHORITY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace failback {

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name);
  ~TestAuthority();

  // Its own certificate.
  const std::string& cert() const { return cert_; }

  struct Request {
    std::string common_name = "test";
    std::vector<std::string> dns;
    std::vector<std::string> uris;
    std::vector<std::string> ips;
    // From now.
    absl::Duration begins = -absl::Hours(1);
    absl::Duration ends = absl::Hours(1);
  };
  struct Pair {
    std::string cert;
    std::string key;
  };
  Pair Issue(const Request& request) const;

  // For a server on this machine.
  Pair IssueServer() const;
  // For a client of this name.
  Pair IssueClient(const std::string& uri) const;

 private:
  struct Keys;
  std::unique_ptr<Keys> keys_;
  std::string cert_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_SECURITY_TEST_AUTHORITY_H_
