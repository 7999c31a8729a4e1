// Connections with TLS end at connections.longest_age: who may still connect goes on without having
// lost anything, who may not is out. On real processes.

#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/security/test_authority.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"

namespace failback {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ConnectionAgeTest : public ::testing::Test {
 protected:
  ConnectionAgeTest() {
    Replace("ca.crt", ca_.cert());
    for (const auto& [name, pair] : {std::pair("server", ca_.IssueServer()),
                                     std::pair("client", ca_.IssueClient("spiffe://c"))}) {
      Replace(absl::StrCat(name, ".crt"), pair.cert);
      Replace(absl::StrCat(name, ".key"), pair.key);
    }
  }

  void Replace(const std::string& name, const std::string& content) const {
    const std::string next = dir_.Write(name + ".next", content);
    EXPECT_EQ(rename(next.c_str(), dir_.File(name).c_str()), 0);
  }

  Daemon Registry() const {
    return Daemon::Registry({"--store", "memory:", "--admin", "127.0.0.1:0", "--tls-cert",
                             dir_.File("server.crt"), "--tls-key", dir_.File("server.key"),
                             "--tls-client-ca", dir_.File("ca.crt"), "--reload-interval", "50ms",
                             "--connections-longest-age", "1s"});
  }
  Daemon Agent(const Daemon& registry) const {
    return Daemon::Agent(
        registry.address(),
        {"--registry-tls-ca", dir_.File("ca.crt"), "--registry-tls-cert", dir_.File("client.crt"),
         "--registry-tls-key", dir_.File("client.key"), "--session-ttl", "3s"});
  }

  // The sum of the counters that begin so.
  static int64_t Counted(const Daemon& registry, const std::string& prefix) {
    std::istringstream page(Http(registry.admin(), "GET", "/metrics").body);
    int64_t sum = 0;
    for (std::string line; std::getline(page, line);) {
      double value = 0;
      if (absl::StartsWith(line, prefix) &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
        sum += static_cast<int64_t>(value);
      }
    }
    return sum;
  }
  static int64_t Calls(const Daemon& registry, const std::string& method) {
    return Counted(registry, absl::StrCat("failback_server_calls_total{method=\"", method, "\""));
  }

  const TempDir dir_;
  const TestAuthority ca_{"ca"};
};

TEST_F(ConnectionAgeTest, AnAgentGoesOnAndSendsNothingAgain) {
  const Daemon registry = Registry();
  Daemon agent = Agent(registry);
  const RunResult registered = Ctl(agent.address(), {"register", "orders", "--id", "a", "--address",
                                                     "h", "--port", "1", "--wait", "acknowledged"});
  ASSERT_EQ(registered.status, 0) << registered.err;
  const auto follower = Process::Start(
      {CtlBinary(), "--target", agent.address(), "subscribe", "orders", "-o", "json"});
  ASSERT_TRUE(follower->WaitForLine("orders").has_value()) << follower->Describe();
  const int64_t registers = Calls(registry, "Register");
  const int64_t opens = Calls(registry, "OpenSession");
  const std::string told = follower->out();

  // Both kinds of stream have ended several times, and the connections under them.
  EXPECT_TRUE(Eventually(
      [&] { return Calls(registry, "Subscribe") >= 6 && Calls(registry, "KeepAlive") >= 3; }));
  EXPECT_EQ(Calls(registry, "Register"), registers) << "nothing was sent again";
  EXPECT_EQ(Calls(registry, "OpenSession"), opens) << "the session goes on";
  EXPECT_EQ(ListedIds(agent.address(), "orders"), std::vector<std::string>{"a"});
  EXPECT_EQ(follower->out(), told) << "nothing had changed";
  EXPECT_THAT(agent.process().err(), Not(HasSubstr("registry away")));
}

TEST_F(ConnectionAgeTest, WhoseAuthorityIsTakenAwayIsOutAfterThat) {
  const Daemon registry = Registry();
  Daemon agent = Agent(registry);
  ASSERT_EQ(Ctl(agent.address(), {"register", "orders", "--id", "a", "--address", "h", "--port",
                                  "1", "--wait", "acknowledged"})
                .status,
            0);
  const TestAuthority next("next");
  Replace("ca.crt", next.cert());
  // The connections that stand ended, and no other is let in: the session runs out.
  EXPECT_TRUE(agent.process().WaitForLine("registry away").has_value())
      << agent.process().Describe();
  EXPECT_TRUE(Eventually([&] {
    return Counted(registry, "failback_registry_sessions_expired_total ") == 1;
  })) << Http(registry.admin(), "GET", "/metrics").body;
}

}  // namespace
}  // namespace failback
