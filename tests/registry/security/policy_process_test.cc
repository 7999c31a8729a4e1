// A policy, and what is refused at the start, as people meet it: real daemons, real certificates,
// failbackctl.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/security/security_process.h"
#include "tests/registry/security/test_authority.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(SecurityProcessTest, APolicyIsFollowedAndABadOneRefused) {
  const std::string may_read =
      "- {certificates: ['spiffe://test/reader'], allow: read, namespaces: default, services: "
      "orders}\n";
  const std::string may_register =
      "- {certificates: ['spiffe://test/orders'], allow: register, namespaces: default, "
      "services: 'orders*'}\n";
  dir_.Write("policy.yaml", Policy(may_read + may_register));
  Daemon registry = Daemon::Registry(
      Args{"--store", "memory:", "--policy-file", File("policy.yaml"), "--admin", "127.0.0.1:0"} +
      ServerTls() + ClientCa());
  const auto metrics = [&] { return Http(registry.admin(), "GET", "/metrics").body; };
  EXPECT_EQ(Ctl(registry.address(), Show("orders") + kRegisterOrders).status, 0);
  const RunResult denied = Ctl(registry.address(), Show("reader") + kRegisterOrders);
  EXPECT_EQ(denied.status, 1);
  EXPECT_THAT(denied.err,
              HasSubstr("PERMISSION_DENIED: certificate spiffe://test/reader may not register "
                        "default/orders; the server's policy file says who may"));
  EXPECT_TRUE(registry.process().WaitForLine("denied caller=").has_value());
  EXPECT_THAT(metrics(), AllOf(HasSubstr("failback_server_denied_total{missing=\"register\"} 1\n"),
                               HasSubstr("failback_server_denied_total{missing=\"read\"} 0\n")));

  const auto subscriber =
      Process::Start(Args{CtlBinary(), "--target", registry.address(), "-o", "json"} +
                     Show("reader") + Args{"subscribe", "orders"});
  ASSERT_TRUE(subscriber->WaitForLine("snapshot").has_value()) << subscriber->Describe();
  // A bad file changes nothing.
  Replace("policy.yaml", "rules:\n- {certificates: [x], allow: everything}\n");
  const auto refused = registry.process().WaitForLine("reload refused");
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(*refused, AllOf(HasSubstr("policy.yaml:2"), HasSubstr("register, read, administer")));
  EXPECT_THAT(metrics(), HasSubstr("failback_config_refused_total{source=\"security\"} 1\n"));
  EXPECT_EQ(Ctl(registry.address(), Show("reader") + Args{"list", "orders"}).status, 0);
  // Nor does one that shuts out all, as nobody has these tokens.
  Replace("policy.yaml",
          Policy("- {tokens: [opps], allow: read, namespaces: '*', services: '*'}\n"));
  EXPECT_TRUE(registry.process().WaitForLine("no rule can ever match").has_value());
  EXPECT_EQ(Ctl(registry.address(), Show("reader") + Args{"list", "orders"}).status, 0);
  // A good one takes the right to read back, from the subscription that is open too.
  Replace("policy.yaml", Policy(may_register));
  EXPECT_EQ(subscriber->WaitForExit(), 1);
  EXPECT_THAT(subscriber->Describe(), HasSubstr("PERMISSION_DENIED"));
  EXPECT_EQ(Ctl(registry.address(), Show("reader") + Args{"list", "orders"}).status, 1);
  EXPECT_THAT(metrics(), HasSubstr("failback_server_denied_total{missing=\"read\"} 2\n"))
      << "the subscription, and the list";
}

TEST_F(SecurityProcessTest, TheAgentsOwnListener) {
  Daemon registry = Daemon::Registry({"--store", "memory:"});
  WriteAgentsPolicy();
  Daemon agent = Daemon::Agent(registry.address(),
                               Args{"--listen", "0.0.0.0:0", "--policy-file", File("policy.yaml")} +
                                   ServerTls() + ClientCa());
  const std::string port = agent.address().substr(agent.address().rfind(':'));
  const std::string target = "127.0.0.1" + port;
  EXPECT_EQ(Ctl(target, Show("orders") + kRegisterOrders + Args{"--wait", "acknowledged"}).status,
            0);
  EXPECT_EQ(Ctl(target, {"--timeout", "2s", "list"}).status, 3) << "plain text";
  EXPECT_EQ(Ctl(target, Show("reader") + Args{"status"}).status, 1);
  EXPECT_EQ(Ctl(target, Show("orders") + Args{"status"}).status, 0);
  for (const Args& command :
       {Args{"pending"}, Args{"retry"}, Args{"cancel", "--all"}, Args{"drain"}}) {
    const RunResult denied = Ctl(target, Show("orders") + command);
    EXPECT_EQ(denied.status, 1) << command[0] << denied.err;
    EXPECT_THAT(denied.err, HasSubstr("PERMISSION_DENIED")) << command[0];
  }
  EXPECT_EQ(Ctl(target, Show("operator") + Args{"pending"}).status, 0);
  EXPECT_EQ(Ctl(target, Show("operator") + Args{"drain"}).status, 0);
}

// What the caller may neither read nor register it cannot tell from what is not there.
TEST_F(SecurityProcessTest, TheAgentNamesNoStaticServiceToWhoMayNotKnowIt) {
  Daemon registry = Daemon::Registry({"--store", "memory:"});
  dir_.Write("policy.yaml",
             Policy("- {certificates: ['spiffe://test/orders'], allow: register, "
                    "namespaces: default, services: orders}\n"
                    "- {certificates: ['spiffe://test/operator'], allow: [register, administer], "
                    "namespaces: '*', services: '*'}\n"));
  dir_.Write("agent.yaml",
             "services:\n"
             "- {name: orders, id: o, address: h, port: 1, "
             "checks: [{name: outer, ttl: {ttl: 30s}}]}\n"
             "- {name: vault, namespace: hidden, id: v, address: h, port: 1, "
             "checks: [{name: inner, ttl: {ttl: 30s}}]}\n");
  WritePair("operator", ca_.IssueClient("spiffe://test/operator"));
  Daemon agent =
      Daemon::Agent(registry.address(), Args{"--config", File("agent.yaml"), "--listen",
                                             "127.0.0.1:0", "--policy-file", File("policy.yaml")} +
                                            ServerTls() + ClientCa());
  const std::string target = agent.address();
  const RunResult all = Ctl(target, Show("operator") + Args{"status", "-o", "json"});
  EXPECT_THAT(all.out, AllOf(HasSubstr("vault"), HasSubstr("inner"), HasSubstr("agent.yaml")));
  const RunResult some = Ctl(target, Show("orders") + Args{"status", "-o", "json"});
  EXPECT_EQ(some.status, 0) << some.err;
  EXPECT_THAT(some.out, AllOf(HasSubstr("outer"), Not(HasSubstr("vault")), Not(HasSubstr("hidden")),
                              Not(HasSubstr("inner")), Not(HasSubstr("agent.yaml"))));
  const auto refusal = [&](const Args& what) {
    const RunResult run = Ctl(target, Show("orders") + Args{"report-health"} + what);
    EXPECT_NE(run.status, 0);
    return absl::StrReplaceAll(run.err, {{"absent", "vault"}});
  };
  for (const Args& more : {Args{}, Args{"--namespace", "hidden"}, Args{"--check", "x"},
                           Args{"--namespace", "hidden", "--check", "x"}}) {
    EXPECT_EQ(refusal(Args{"vault"} + more), refusal(Args{"absent"} + more));
  }
  EXPECT_EQ(Ctl(target, Show("orders") + Args{"report-health", "orders"}).status, 0);
  EXPECT_EQ(Ctl(target, Show("operator") + Args{"report-health", "vault"}).status, 0);
}

// Why a registry refuses the agent, or cannot be reached, names hosts and files.
TEST_F(SecurityProcessTest, TheAgentsErrorsAreInWordsForOperatorsOnly) {
  Daemon registry =
      Daemon::Registry({"--store", "memory:", "--known-tokens-file",
                        dir_.Write("tokens.yaml", TokensOf({{"agent-secret", "agent"}}))});
  WriteAgentsPolicy();
  Daemon agent = Daemon::Agent(
      registry.address(), Args{"--listen", "127.0.0.1:0", "--policy-file", File("policy.yaml")} +
                              ServerTls() + ClientCa());
  const auto shown = [&](const std::string& who) {
    const std::string out = Ctl(agent.address(), Show(who) + Args{"status"}).out;
    const size_t begin = std::min(out.find("last error"), out.size());
    return out.substr(begin, out.find('\n', begin) - begin);
  };
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(shown("operator"), "UNAUTHENTICATED"); }))
      << shown("operator");
  EXPECT_THAT(shown("operator"), HasSubstr("look at its token_file"));
  EXPECT_EQ(shown("orders"), "last error    UNAUTHENTICATED [CREDENTIALS_NEEDED]");
  const RunResult ready =
      Ctl(agent.address(), Show("orders") + Args{"wait-ready", "--deadline", "100ms"});
  EXPECT_NE(ready.status, 0);
  EXPECT_THAT(ready.err, AllOf(HasSubstr("(UNAUTHENTICATED)"), Not(HasSubstr("()"))));
}

TEST_F(SecurityProcessTest, NoVersionOfTlsBelow12) {
  Daemon registry = Daemon::Registry(Args{"--store", "memory:"} + ServerTls());
  const auto connect = [&](const std::string& version) {
    return RunProcess({"/bin/sh", "-c",
                       absl::StrCat("openssl s_client -connect ", registry.address(), " -", version,
                                    " -alpn h2 -cipher DEFAULT@SECLEVEL=0 </dev/null")})
        .status;
  };
  EXPECT_NE(connect("tls1"), 0);
  EXPECT_NE(connect("tls1_1"), 0);
  EXPECT_EQ(connect("tls1_2"), 0);
  EXPECT_EQ(connect("tls1_3"), 0);
}

// One line on stderr with all parts, and exit status 2.
void ExpectRefused(const RunResult& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.status, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
}

TEST_F(SecurityProcessTest, PlainTextBeyondThisMachineOnlyByName) {
  const Args registry = {RegistryBinary(), "--store", "memory:"};
  const Args agent = {AgentBinary(), "--registry", "grpc://127.0.0.1:1"};
  for (const std::string address : {"0.0.0.0:0", "[::]:0", "127.example.com:0", "10.0.0.1:0"}) {
    for (const Args& daemon : {registry, agent}) {
      ExpectRefused(RunProcess(daemon + Args{"--listen", address}),
                    {"--listen: other machines can connect to " + address, "tls.cert",
                     "allow_remote_plaintext"});
      ExpectRefused(RunProcess(daemon + Args{"--listen", "127.0.0.1:0", "--listen", address}),
                    {address});
    }
  }
  // By name it is allowed, and with TLS.
  EXPECT_EQ(Daemon::Registry(
                {"--store", "memory:", "--listen", "0.0.0.0:0", "--allow-remote-plaintext", "true"})
                .Stop(),
            0);
  EXPECT_EQ(
      Daemon::Registry(Args{"--store", "memory:", "--listen", "0.0.0.0:0"} + ServerTls()).Stop(),
      0);
  // A token does not leave the machine in plain text.
  dir_.Write("token", "secret");
  ExpectRefused(RunProcess({AgentBinary(), "--registry", "grpc://registry.test:7070",
                            "--token-file", File("token"), "--listen", "127.0.0.1:0"}),
                {"--registry: ", "the token would go to 'registry.test:7070' in plain text"});
  ExpectRefused(RunProcess({CtlBinary(), "--target", "registry.test:7070", "--token-file",
                            File("token"), "list"}),
                {"--token-file: the token would go to registry.test:7070 in plain text"});
}

TEST_F(SecurityProcessTest, BadFilesAreNamedAtTheStart) {
  const Args registry = {RegistryBinary(), "--store", "memory:", "--listen", "127.0.0.1:0"};
  const std::string none = File("none");
  ExpectRefused(RunProcess(registry + Args{"--tls-cert", none, "--tls-key", File("server.key")}),
                {"failback-registry: --tls-cert: '" + none + "' cannot be read: No such file"});
  ExpectRefused(
      RunProcess(registry +
                 Args{"--tls-cert", File("server.crt"), "--tls-key", File("orders.key")}),
      {"--tls-key: '" + File("orders.key") + "' does not belong to the certificate in '"});
  ExpectRefused(RunProcess(registry + Args{"--tls-cert", File("server.crt")}),
                {"tls.key: is required"});
  ExpectRefused(RunProcess(registry + ServerTls() + Args{"--tls-client-ca", none}),
                {"--tls-client-ca: '" + none});
  ExpectRefused(RunProcess(registry + ServerTls() + Args{"--tls-client-certificates", "required"}),
                {"tls.client_ca: is required"});
  TestAuthority::Request request;
  request.ends = absl::Seconds(-10);
  WritePair("expired", ca_.Issue(request));
  ExpectRefused(RunProcess(registry + Args{"--tls-cert", File("expired.crt"), "--tls-key",
                                           File("expired.key"), "--validate-config"}),
                {"--tls-cert: '" + File("expired.crt") + "' ended on "});
  const std::string policy =
      dir_.Write("policy.yaml", "rules:\n- certificates: [a]\n  allow: read\n  namespaces: '*'\n");
  ExpectRefused(RunProcess(registry + Args{"--policy-file", policy}),
                {"--policy-file: " + policy + ":2: rules[0].services: is required"});
  ExpectRefused(RunProcess(registry + Args{"--policy-file", none}),
                {"--policy-file: " + none + ": cannot be read: No such file"});
  const std::string tokens = dir_.Write("tokens.yaml", "tokens:\n- {name: a, sha256: hunter2}\n");
  const RunResult result = RunProcess(registry + Args{"--known-tokens-file", tokens});
  ExpectRefused(result, {"--known-tokens-file: " + tokens + ":2: tokens[0].sha256: is no SHA-256"});
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("hunter2")));

  const Args agent = {AgentBinary(), "--registry", "grpc://127.0.0.1:1", "--listen", "127.0.0.1:0"};
  ExpectRefused(RunProcess(agent + Args{"--registry-tls-cert", File("orders.crt")}),
                {"registry_tls.ca: is required with cert"});
  ExpectRefused(RunProcess(agent + Args{"--registry-tls-ca", none}),
                {"--registry-tls-ca: '" + none + "' cannot be read"});
  ExpectRefused(RunProcess(agent + Args{"--token-file", none}),
                {"--token-file: '" + none + "' cannot be read"});
}

}  // namespace
}  // namespace failback
