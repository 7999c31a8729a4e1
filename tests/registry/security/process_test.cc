// TLS and tokens as people run them: real daemons, real certificates, failbackctl.

#include "tests/util/process.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/security/security_process.h"
#include "tests/registry/security/test_authority.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(SecurityProcessTest, MutualTlsFromAgentToRegistry) {
  Daemon registry = Daemon::Registry(Args{"--store", "memory:"} + ServerTls() + ClientCa());
  Daemon agent = Daemon::Agent(registry.address(), UpstreamTls("orders"));
  const RunResult registered =
      Ctl(agent.address(), kRegisterOrders + Args{"--wait", "acknowledged"});
  EXPECT_EQ(registered.status, 0) << registered.err;
  const RunResult list = Ctl(registry.address(), Show("reader") + Args{"list", "orders"});
  EXPECT_EQ(list.status, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("orders"));
  // Through the environment.
  const RunResult environment = RunProcess({CtlBinary(), "--target", registry.address(), "list"},
                                           {{"FAILBACK_CTL_TLS_CA", File("ca.crt")},
                                            {"FAILBACK_CTL_TLS_CERT", File("reader.crt")},
                                            {"FAILBACK_CTL_TLS_KEY", File("reader.key")}});
  EXPECT_EQ(environment.status, 0) << environment.err;

  // Refused, without a word to any: no certificate, plain text, an expired
  // certificate, one of another authority, and a client that does not trust this server.
  TestAuthority::Request request;
  request.ends = absl::Seconds(-10);
  const TestAuthority::Pair expired = ca_.Issue(request);
  const TestAuthority stranger("ca");  // of the same name
  WritePair("stranger", stranger.IssueClient("spiffe://test/orders"));
  dir_.Write("stranger-ca.crt", stranger.cert());
  const Args quick = {"--timeout", "2s"};
  for (const Args& args : {Trust(), Args(), Show("stranger"),
                           Args{"--tls-ca", File("stranger-ca.crt"), "--tls-cert",
                                File("reader.crt"), "--tls-key", File("reader.key")},
                           Show("reader") + Args{"--tls-server-name", "other.test"}}) {
    const RunResult refused = Ctl(registry.address(), quick + args + Args{"list"});
    EXPECT_EQ(refused.status, 3) << ::testing::PrintToString(args) << refused.err;
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr(absl::StrCat("UNAVAILABLE: ", registry.address(),
                                             " takes no such connection")),
                      HasSubstr(args.empty() ? "does it ask for TLS" : "does it speak TLS")));
  }
  const auto logged = registry.process().WaitForLine("TLS handshake failed");
  EXPECT_TRUE(logged.has_value()) << registry.process().Describe();
  EXPECT_EQ(Ctl(registry.address(), Show("reader") + Args{"--tls-server-name", "localhost", "list"})
                .status,
            0);
  // failbackctl itself does not show what has expired.
  dir_.Write("expired.crt", expired.cert);
  dir_.Write("expired.key", expired.key);
  const RunResult refused = Ctl(registry.address(), Show("expired") + Args{"list"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("--tls-cert: '" + File("expired.crt")), HasSubstr("' ended on ")));
}

// To the agent such a handshake is a connection that closes.
TEST_F(SecurityProcessTest, AnAgentWhoseCertificateHasEndedSaysSo) {
  TestAuthority::Request request;
  request.uris = {"spiffe://test/orders"};
  request.ends = absl::Seconds(5);
  WritePair("orders", ca_.Issue(request));
  const Args args = Args{"--store", "memory:"} + ServerTls() + ClientCa();
  Daemon registry = Daemon::Registry(args);
  Daemon agent = Daemon::Agent(registry.address(), UpstreamTls("orders"));
  EXPECT_THAT(Ctl(agent.address(), {"status"}).out,
              HasSubstr("certificate   shown to registries, ends "));
  ASSERT_TRUE(agent.process().WaitForLine("certificate has ended").has_value())
      << agent.process().Describe();
  registry.Kill();
  Daemon again = Daemon::Registry(args + Args{"--listen", registry.address()});
  EXPECT_TRUE(Eventually([&] {
    const RunResult status = Ctl(agent.address(), {"status"});
    return absl::StrContains(status.out, "; the certificate that this agent shows ended on ") &&
           absl::StrContains(status.out, "certificate   shown to registries, ended ");
  })) << Ctl(agent.address(), {"status"}).out;
  EXPECT_TRUE(again.process().WaitForLine("TLS handshake failed").has_value());
}

// As logrotate and people do it; it ended the registry.
TEST_F(SecurityProcessTest, AHangUpTakesNewFilesAtOnceAndEndsNobody) {
  dir_.Write("tokens.yaml", TokensOf({{"old", "ci"}}));
  const Args tokens = {"--known-tokens-file", File("tokens.yaml")};
  const Args hourly = {"--tls-cert",       File("server.crt"),  "--tls-key",
                       File("server.key"), "--reload-interval", "1h"};
  Daemon registry = Daemon::Registry(Args{"--store", "memory:"} + hourly + tokens);
  Daemon agent = Daemon::Agent(registry.address(),
                               hourly + tokens + Args{"--registry-tls-ca", File("ca.crt")});
  WritePair("server", ca_.IssueServer());
  Replace("tokens.yaml", TokensOf({{"new", "ci"}}));
  dir_.Write("token", "new\n");
  for (Daemon* daemon : {&registry, &agent}) {
    daemon->process().Signal(SIGHUP);
    for (const char* what : {"what=certificate", "what=\"access rules\""}) {
      EXPECT_TRUE(daemon->process().WaitForLine(what).has_value()) << daemon->process().Describe();
    }
    EXPECT_THAT(daemon->process().err(), HasSubstr("reloaded"));
  }
  const RunResult list =
      Ctl(registry.address(), Trust() + Args{"--token-file", File("token"), "list"});
  EXPECT_EQ(list.status, 0) << list.err;
  for (Daemon* daemon : {&registry, &agent}) {
    daemon->process().Signal(SIGHUP);  // nothing has changed
    daemon->process().Signal(SIGTERM);
    EXPECT_EQ(daemon->process().WaitForExit(), 0) << daemon->process().Describe();
  }
}

TEST_F(SecurityProcessTest, CertificatesAreRotatedUnderLoadWithoutAFailedCall) {
  const TestAuthority next_ca("next");
  dir_.Write("both.crt", ca_.cert() + next_ca.cert());
  dir_.Write("next-ca.crt", next_ca.cert());
  Replace("ca.crt", ca_.cert() + next_ca.cert());
  Daemon registry = Daemon::Registry(Args{"--store", "memory:"} + ServerTls() + ClientCa());
  Daemon agent =
      Daemon::Agent(registry.address(), UpstreamTls("orders") + Args{"--session-ttl", "2s"});
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0};
  std::vector<std::string> failures;
  // New connections all the time, and calls through the agent's standing one.
  std::thread load([&] {
    for (int i = 0; !stop; ++i) {
      const RunResult direct = Ctl(registry.address(), Show("reader") + Args{"list"});
      if (direct.status != 0) failures.push_back(direct.err);
      const RunResult through =
          Ctl(agent.address(), Args{"register", "orders", "--id", absl::StrCat(i), "--address", "h",
                                    "--port", "1", "--wait", "acknowledged"});
      if (through.status != 0) failures.push_back(through.err);
      ++calls;
    }
  });
  const auto serves = [&](const std::string& ca) {
    return Ctl(registry.address(),
               Args{"--timeout", "2s", "--tls-ca", File(ca), "--tls-cert", File("reader.crt"),
                    "--tls-key", File("reader.key"), "list"})
               .status == 0;
  };
  EXPECT_FALSE(serves("next-ca.crt"));
  // What is no pair is refused, told once, and changes nothing.
  Replace("server.key", next_ca.IssueServer().key);
  const auto refused = registry.process().WaitForLine("reload refused");
  ASSERT_TRUE(refused.has_value()) << registry.process().Describe();
  EXPECT_THAT(*refused, HasSubstr("does not belong to the certificate"));
  const int before = calls;
  EXPECT_TRUE(Eventually([&] { return calls > before + 2; }));
  // The server's own, the agent's, and failbackctl's.
  WritePair("server", next_ca.IssueServer());
  EXPECT_TRUE(Eventually([&] { return serves("next-ca.crt"); }));
  WritePair("orders", next_ca.IssueClient("spiffe://test/orders"));
  EXPECT_TRUE(agent.process().WaitForLine("certificate taken").has_value());
  const int after = calls;
  EXPECT_TRUE(Eventually([&] { return calls > after + 2; }));
  stop = true;
  load.join();
  EXPECT_THAT(failures, ::testing::IsEmpty());
}

TEST_F(SecurityProcessTest, TheSessionGoesOnWithARotatedCertificateOfTheSameName) {
  dir_.Write("policy.yaml",
             Policy("- {certificates: ['spiffe://test/*'], allow: [register, read], namespaces: "
                    "'*', services: '*'}\n"));
  Daemon registry = Daemon::Registry(
      Args{"--store", "memory:", "--policy-file", File("policy.yaml")} + ServerTls() + ClientCa());
  Daemon agent =
      Daemon::Agent(registry.address(), UpstreamTls("orders") + Args{"--session-ttl", "1s"});
  ASSERT_EQ(Ctl(agent.address(), kRegisterOrders + Args{"--wait", "acknowledged"}).status, 0);
  WritePair("orders", ca_.IssueClient("spiffe://test/orders"));
  ASSERT_EQ(Ctl(agent.address(), {"register", "orders", "--id", "b", "--address", "h", "--port",
                                  "1", "--wait", "acknowledged"})
                .status,
            0);
  // Another name is another caller: the old session runs out, and everything comes again in a new.
  WritePair("orders", ca_.IssueClient("spiffe://test/orders-renamed"));
  const RunResult renamed =
      Ctl(agent.address(), {"register", "orders", "--id", "c", "--address", "h", "--port", "1",
                            "--wait", "acknowledged", "--timeout", "30s"});
  ASSERT_EQ(renamed.status, 0) << renamed.err;
  EXPECT_TRUE(Eventually([&] {
    const RunResult list =
        Ctl(registry.address(), Show("reader") + Args{"list", "orders", "-o", "json"});
    return absl::StrContains(list.out, "\"a\"") && absl::StrContains(list.out, "\"b\"") &&
           absl::StrContains(list.out, "\"c\"");
  }));
}

TEST_F(SecurityProcessTest, TokensOnTheWayToTheRegistry) {
  dir_.Write("tokens.yaml", TokensOf({{"old-secret", "orders"}, {"reader-secret", "reader"}}));
  Daemon registry = Daemon::Registry(
      Args{"--store", "memory:", "--known-tokens-file", File("tokens.yaml")} + ServerTls());
  dir_.Write("token", "wrong-secret\n");
  Daemon agent = Daemon::Agent(
      registry.address(), {"--registry-tls-ca", File("ca.crt"), "--token-file", File("token")});
  ASSERT_EQ(Ctl(agent.address(), kRegisterOrders).status, 0);
  const auto last_code = [&] {
    const auto pending = PendingAt(agent.address());
    return pending.empty() ? 0 : pending[0].last_status().code();
  };
  EXPECT_TRUE(Eventually([&] { return last_code() == 16; })) << "UNAUTHENTICATED";
  // The right one arrives: the next attempt takes it.
  Replace("token", "old-secret");
  EXPECT_TRUE(Eventually([&] { return PendingAt(agent.address()).empty(); }));
  dir_.Write("reader", "reader-secret");
  const Args read = Trust() + Args{"--token-file", File("reader")};
  const auto listed = [&] {
    return Ctl(registry.address(), read + Args{"list", "orders", "-o", "json"}).out;
  };
  EXPECT_THAT(listed(), HasSubstr("\"a\""));
  // Rotated: both are known, then the new one alone.
  Replace(
      "tokens.yaml",
      TokensOf({{"old-secret", "orders"}, {"new-secret", "orders"}, {"reader-secret", "reader"}}));
  ASSERT_TRUE(registry.process().WaitForLine("reloaded").has_value());
  Replace("token", "new-secret");
  Replace("tokens.yaml", TokensOf({{"new-secret", "orders"}, {"reader-secret", "reader"}}));
  ASSERT_EQ(Ctl(agent.address(), {"register", "orders", "--id", "b", "--address", "h", "--port",
                                  "1", "--wait", "acknowledged", "--timeout", "30s"})
                .status,
            0);
  EXPECT_THAT(listed(), AllOf(HasSubstr("\"a\""), HasSubstr("\"b\"")));
  // Without, and with one that is wrong.
  const RunResult none = Ctl(registry.address(), Trust() + Args{"list"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, AllOf(HasSubstr("UNAUTHENTICATED"), HasSubstr("--token-file")));
  dir_.Write("old", "old-secret");
  const RunResult old =
      Ctl(registry.address(), Trust() + Args{"--token-file", File("old"), "list"});
  EXPECT_EQ(old.status, 1);
  EXPECT_THAT(old.err, HasSubstr("UNAUTHENTICATED"));
  // No secret is in any log.
  for (Daemon* daemon : {&registry, &agent}) {
    EXPECT_THAT(daemon->process().Describe(), ::testing::Not(HasSubstr("secret")));
  }
}

// The registry refuses the renewals of an agent whose token is gone: what it holds of that agent
// goes after a TTL, and the agent must not call it acknowledged.
TEST_F(SecurityProcessTest, ARevokedTokenLapsesTheLeaseAndIsToldWhereverAnOperatorLooks) {
  const std::string reader = TokensOf({{"reader-secret", "reader"}});
  const std::string both = TokensOf({{"agent-secret", "orders"}, {"reader-secret", "reader"}});
  dir_.Write("tokens.yaml", both);
  dir_.Write("policy.yaml", Policy("- {tokens: [orders], allow: [register, read], namespaces: '*', "
                                   "services: '*'}\n"
                                   "- {tokens: [reader], allow: [read, administer], namespaces: "
                                   "'*', services: '*'}\n"));
  Daemon registry =
      Daemon::Registry(Args{"--store", "memory:", "--known-tokens-file", File("tokens.yaml"),
                            "--policy-file", File("policy.yaml"), "--tls-cert", File("server.crt"),
                            "--tls-key", File("server.key"), "--reload-interval", "1h"});
  dir_.Write("token", "agent-secret");
  Daemon agent = Daemon::Agent(registry.address(),
                               {"--registry-tls-ca", File("ca.crt"), "--token-file", File("token"),
                                "--session-ttl", "2s", "--admin", "127.0.0.1:0"});
  const Args acknowledged = {"--wait", "acknowledged"};
  ASSERT_EQ(Ctl(agent.address(), kRegisterOrders + acknowledged).status, 0);

  Replace("tokens.yaml", reader);
  registry.process().Signal(SIGHUP);
  const auto revoked = registry.process().WaitForLine("access revoked");
  ASSERT_TRUE(revoked.has_value()) << registry.process().Describe();
  EXPECT_THAT(*revoked, HasSubstr("caller=\"token orders\" why=\"the token is no longer accepted\" "
                                  "sessions=1 instances=1"));
  const auto lapsed = agent.process().WaitForLine("lease lapsed");
  ASSERT_TRUE(lapsed.has_value()) << agent.process().Describe();
  EXPECT_THAT(*lapsed, HasSubstr("code=UNAUTHENTICATED"));
  const std::string status = Ctl(agent.address(), {"status"}).out;
  EXPECT_THAT(status, AllOf(HasSubstr("1 desired, 0 acknowledged, lapsed since "),
                            HasSubstr("UNAUTHENTICATED")));
  EXPECT_THAT(status,
              AllOf(HasSubstr("state         connecting since "),
                    HasSubstr(": the registry refuses this agent's token or certificate\n")));
  EXPECT_THAT(Ctl(agent.address(), {"intents"}).out,
              AllOf(HasSubstr("lapsed"), HasSubstr("UNAUTHENTICATED")));
  EXPECT_THAT(Http(agent.admin(), "GET", "/overview").body,
              AllOf(HasSubstr("\"lapsedSince\""), HasSubstr("\"lastError\""),
                    HasSubstr("\"refused\":true")));
  EXPECT_THAT(Http(agent.admin(), "GET", "/metrics").body,
              AllOf(HasSubstr("failback_agent_session_lapsed{upstream=\""),
                    HasSubstr("failback_agent_registrations_acknowledged{upstream=\"")));
  const RunResult ready = Ctl(agent.address(), {"wait-ready", "--deadline", "100ms"});
  EXPECT_NE(ready.status, 0);
  EXPECT_THAT(ready.err, HasSubstr("has run out"));
  // Who waits for an acknowledgement waits, also for what was acknowledged once.
  const RunResult waited =
      Ctl(agent.address(), kRegisterOrders + acknowledged + Args{"--timeout", "500ms"});
  EXPECT_NE(waited.status, 0) << waited.out;
  EXPECT_THAT(waited.err, HasSubstr("DEADLINE_EXCEEDED"));
  dir_.Write("reader", "reader-secret");
  const Args list = Trust() + Args{"--token-file", File("reader"), "list", "orders", "-o", "json"};
  EXPECT_TRUE(Eventually([&] {
    return !absl::StrContains(Ctl(registry.address(), list).out, "\"a\"");
  })) << "its session has ended";
  EXPECT_THAT(Ctl(registry.address(),
                  Trust() + Args{"--token-file", File("reader"), "describe", "orders", "--id", "a"})
                  .out,
              HasSubstr("was not renewed within the TTL; token orders is no longer let in"));

  Replace("tokens.yaml", both);
  registry.process().Signal(SIGHUP);
  ASSERT_EQ(Ctl(agent.address(), kRegisterOrders + acknowledged + Args{"--timeout", "30s"}).status,
            0);
  EXPECT_THAT(Ctl(registry.address(), list).out, HasSubstr("\"a\""));
  EXPECT_TRUE(agent.process().WaitForLine("lease renewed").has_value());
  EXPECT_THAT(Ctl(agent.address(), {"status"}).out, AllOf(HasSubstr("1 desired, 1 acknowledged\n"),
                                                          Not(HasSubstr("refuses this agent"))));
}

TEST_F(SecurityProcessTest, CertificatesThatEndSoonAreToldByBothSides) {
  TestAuthority::Request request;
  request.uris = {"spiffe://test/late"};
  request.begins = -absl::Hours(100);
  request.ends = absl::Hours(10);
  WritePair("late", ca_.Issue(request));
  Daemon registry = Daemon::Registry(Args{"--store", "memory:", "--admin", "127.0.0.1:0"} +
                                     ServerTls() + ClientCa());
  Daemon agent =
      Daemon::Agent(registry.address(), UpstreamTls("late") + Args{"--admin", "127.0.0.1:0"});
  const auto told = registry.process().WaitForLine("a client's certificate ends soon");
  ASSERT_TRUE(told.has_value());
  EXPECT_THAT(*told, HasSubstr("client=spiffe://test/late host=127.0.0.1 ends=2"));
  EXPECT_TRUE(agent.process().WaitForLine("certificate ends soon").has_value());
  const auto metrics = [](const Daemon& daemon) {
    return Http(daemon.admin(), "GET", "/metrics").body;
  };
  EXPECT_THAT(metrics(registry),
              AllOf(HasSubstr("failback_server_client_certificates_ending 1\n"),
                    HasSubstr("failback_server_client_certificate_not_after_timestamp_seconds ")));
  EXPECT_THAT(metrics(agent), HasSubstr("failback_agent_certificate_not_after_timestamp_seconds "));
  const RunResult status = Ctl(registry.address(), Show("reader") + Args{"status"});
  EXPECT_THAT(status.out, AllOf(HasSubstr("certificate   ends "),
                                HasSubstr("clients'      2 certificates seen, 1 ends soon\n"),
                                HasSubstr("spiffe://test/late at 127.0.0.1 ends ")));
  EXPECT_THAT(Ctl(agent.address(), {"status"}).out,
              HasSubstr("certificate   shown to registries, ends "));
}

}  // namespace
}  // namespace failback
