// Real daemons with certificates, tokens and policies.

#ifndef FAILBACK_TESTS_REGISTRY_SECURITY_SECURITY_PROCESS_H_
#define FAILBACK_TESTS_REGISTRY_SECURITY_SECURITY_PROCESS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/security/identity.h"
#include "tests/registry/security/test_authority.h"
#include "tests/util/process.h"

namespace failback {

using Args = std::vector<std::string>;

inline Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Args kRegisterOrders = {"register", "orders", "--id", "a", "--address", "h", "--port", "1"};

inline std::string Policy(const std::string& rules) { return "rules:\n" + rules; }
inline std::string TokensOf(const std::map<std::string, std::string>& tokens) {
  std::string yaml = "tokens:\n";
  for (const auto& [token, name] : tokens) {
    absl::StrAppend(&yaml, "- {name: ", name, ", sha256: ", absl::BytesToHexString(Sha256(token)),
                    "}\n");
  }
  return yaml;
}

class SecurityProcessTest : public ::testing::Test {
 protected:
  // Writes NAME.crt and NAME.key.
  void WritePair(const std::string& name, const TestAuthority::Pair& pair) {
    Replace(name + ".key", pair.key);
    Replace(name + ".crt", pair.cert);
  }
  // As tools do it: the file is there, old or new, at any time.
  std::string Replace(const std::string& name, const std::string& content) {
    const std::string next = dir_.Write(name + ".next", content);
    EXPECT_EQ(rename(next.c_str(), dir_.File(name).c_str()), 0);
    return dir_.File(name);
  }
  std::string File(const std::string& name) const { return dir_.File(name); }

  Args ServerTls() {
    return {"--tls-cert",       File("server.crt"),  "--tls-key",
            File("server.key"), "--reload-interval", "50ms"};
  }
  Args ClientCa() { return {"--tls-client-ca", File("ca.crt")}; }
  Args UpstreamTls(const std::string& name) {
    return {"--registry-tls-ca", File("ca.crt"),       "--registry-tls-cert",
            File(name + ".crt"), "--registry-tls-key", File(name + ".key")};
  }
  // Of an agent's own listener: `orders` uses its service, `operator` administers.
  void WriteAgentsPolicy() {
    dir_.Write("policy.yaml",
               Policy("- {certificates: ['spiffe://test/orders'], allow: [register, read], "
                      "namespaces: default, services: orders}\n"
                      "- {certificates: ['spiffe://test/operator'], allow: administer, "
                      "namespaces: '*', services: '*'}\n"));
    WritePair("operator", ca_.IssueClient("spiffe://test/operator"));
  }
  // For failbackctl.
  Args Trust() { return {"--tls-ca", File("ca.crt")}; }
  Args Show(const std::string& name) {
    return Trust() + Args{"--tls-cert", File(name + ".crt"), "--tls-key", File(name + ".key")};
  }

  SecurityProcessTest() {
    dir_.Write("ca.crt", ca_.cert());
    WritePair("server", ca_.IssueServer());
    WritePair("orders", ca_.IssueClient("spiffe://test/orders"));
    WritePair("reader", ca_.IssueClient("spiffe://test/reader"));
  }

  const TempDir dir_;
  const TestAuthority ca_{"ca"};
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_SECURITY_SECURITY_PROCESS_H_
