#include "agent/agent_config.h"

#include <memory>
#include <string>

#include "agent/static_service_config.h"
#include "failback/agent/v1/config.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using agent::v1::AgentConfig;

// Loads a file as the agent does.
class AgentConfigTest : public ::testing::Test {
 protected:
  std::string Load(const std::string& yaml) {
    const std::string file = dir_.Write("agent.yaml", yaml);
    loader_ = std::make_unique<ConfigLoader>(ConfigLoader::Program{"failback-agent", "", ""},
                                             AgentConfig::descriptor());
    const char* const argv[] = {"failback-agent", "--config", file.c_str()};
    EXPECT_FALSE(loader_->ParseCommandLine(3, argv).has_value());
    config_.Clear();
    absl::Status status = loader_->Load(&config_);
    if (status.ok()) status = ValidateAgentConfig(config_, *loader_).status();
    std::string message(status.message());
    // Without the folder, which is another each time.
    const size_t at = message.find(dir_.path() + "/");
    if (at != std::string::npos) message.erase(at, dir_.path().size() + 1);
    return message;
  }

  const TempDir dir_;
  AgentConfig config_;
  std::unique_ptr<ConfigLoader> loader_;
};

TEST_F(AgentConfigTest, Dns_IsCheckedBeforeItServes) {
  const std::string ok = "registry: grpc://127.0.0.1:7070\n";
  EXPECT_EQ(
      Load(ok +
           "dns: {listen: ['127.0.0.1:7063', '[::1]:7063'], domain: dc1.example.com, ttl: 0s}\n"),
      "");
  EXPECT_EQ(Load(ok + "dns: {listen: '0.0.0.0:53'}\n"),
            "agent.yaml:2: dns.listen[0]: other machines can ask 0.0.0.0:53; listen on a loopback "
            "address, or set dns.allow_remote");
  EXPECT_EQ(Load(ok + "dns: {listen: '0.0.0.0:53', allow_remote: true}\n"), "");
  EXPECT_EQ(Load(ok + "dns: {listen: 'unix:/x'}\n"),
            "agent.yaml:2: dns.listen[0]: 'unix:/x' is a Unix socket; allowed is HOST:PORT");
  EXPECT_EQ(Load(ok + "dns: {listen: 'x'}\n"),
            "agent.yaml:2: dns.listen[0]: 'x' is no address: the port is missing; allowed are "
            "host:port and [ipv6]:port");
  EXPECT_EQ(Load(ok + "dns: {domain: a..b}\n"),
            "agent.yaml:2: dns.domain: 'a..b' is no domain name: a label is empty");
  EXPECT_EQ(Load(ok + "dns: {ttl: 6s}\n"), "agent.yaml:2: dns.ttl: '6s' is not in 0s..5s");
  EXPECT_EQ(Load(ok + "dns: {ttl: 500ms}\n"),
            "agent.yaml:2: dns.ttl: '500ms' is no whole number of seconds");
  EXPECT_EQ(Load(ok + "dns: {max_udp_bytes: 9000}\n"),
            "agent.yaml:2: dns.max_udp_bytes: '9000' is not in 512..8192");
  EXPECT_EQ(Load(ok + "dns: {read_as: dns}\n"),
            "agent.yaml:2: dns.read_as: needs policy_file or known_tokens_file: without them "
            "everybody may read everything");
}

TEST_F(AgentConfigTest, StaticServicesBecomeIntents) {
  ASSERT_EQ(Load(R"(
registry: grpc://127.0.0.1:7070
zone: eu-1
services:
- {name: orders, address: 10.0.0.1, port: 80, metadata: {v: 1.10}}
- {name: orders, id: o2, namespace: test, address: "::1", port: 81, weight: 5, zone: eu-2,
   persistent: true}
)"),
            "");
  const auto specs = StaticServices(config_, *loader_);
  ASSERT_TRUE(specs.ok()) << specs.status();
  ASSERT_EQ(specs->size(), 2u);
  const ServiceInstance& first = (*specs)[0].instance;
  EXPECT_EQ(first.key().namespace_(), "default");
  EXPECT_EQ(first.key().service(), "orders");
  EXPECT_EQ(first.key().instance_id(), "10.0.0.1:80");
  EXPECT_EQ(first.zone(), "eu-1");
  EXPECT_EQ(first.metadata().at("v"), "1.10");
  EXPECT_FALSE(first.has_weight());
  const ServiceInstance& second = (*specs)[1].instance;
  EXPECT_EQ(second.key().namespace_(), "test");
  EXPECT_EQ(second.key().instance_id(), "o2");
  EXPECT_EQ(second.weight(), 5u);
  EXPECT_EQ(second.zone(), "eu-2");
  EXPECT_TRUE(second.persistent());
}

TEST_F(AgentConfigTest, OptionsComeFromTheConfiguration) {
  ASSERT_EQ(Load(R"(
registry: grpc://127.0.0.1:7070
client_name: me
session_ttl: 3s
limits: {instances: 1, pending: 2, subscriptions: 3, listeners: 4, sessions: 5}
retry: {retry_times: 2, retry_period: 250ms, superseded_period: 0s, backoff: {initial: 1s, max: 2s, jitter: 0.5}}
)"),
            "");
  const FailbackRegistry::Options options = ToFailbackOptions(config_);
  EXPECT_EQ(options.client_name, "me");
  EXPECT_EQ(options.session_ttl, absl::Seconds(3));
  EXPECT_EQ(options.max_records, 1);
  EXPECT_EQ(options.max_pending, 2);
  EXPECT_EQ(options.max_subscriptions, 3);
  EXPECT_EQ(options.max_listeners, 4);
  EXPECT_EQ(options.max_sessions, 5);
  EXPECT_EQ(options.retry.retry_times, 2);
  EXPECT_EQ(options.retry.retry_period, absl::Milliseconds(250));
  EXPECT_EQ(options.superseded_period, absl::ZeroDuration());
  EXPECT_EQ(options.retry.backoff.initial, absl::Seconds(1));
  EXPECT_EQ(options.retry.backoff.multiplier, 2);
  EXPECT_EQ(options.retry.backoff.max, absl::Seconds(2));
  EXPECT_EQ(options.retry.backoff.jitter, 0.5);
  ASSERT_EQ(Load("registry: grpc://127.0.0.1:7070\n"), "");
  EXPECT_THAT(ToFailbackOptions(config_).client_name, ::testing::StartsWith("failback-agent@"));
  EXPECT_FALSE(ToFailbackOptions(config_).retry.retry_period.has_value());
  EXPECT_EQ(ToFailbackOptions(config_).superseded_period,
            FailbackRegistry::Options().superseded_period);
  EXPECT_EQ(ToFailbackOptions(config_).max_listeners, FailbackRegistry::Options().max_listeners);
}

TEST_F(AgentConfigTest, BadValuesNameTheLineAndTheKey) {
  const std::string ok = "registry: grpc://127.0.0.1:7070\n";
  EXPECT_EQ(Load("zone: a\n"), "agent.yaml: registry: is required, as grpc://127.0.0.1:7070");
  EXPECT_THAT(Load("registry: http://a:1\n"),
              ::testing::StartsWith("agent.yaml:1: registry[0]: registry URI 'http://a:1': "));
  EXPECT_THAT(Load("registry: grpc://a:70000\n"), ::testing::HasSubstr("70000"));
  EXPECT_EQ(Load("registry: [a=grpc://a:1, a=grpc://b:1]\n"),
            "agent.yaml:1: registry[1]: 'a' is registry[0] already");
  EXPECT_EQ(Load("registry: [grpc://a:1, grpc://a:2, grpc://a:3, grpc://a:4, grpc://a:5]\n"), "");
  EXPECT_EQ(Load("registry: [grpc://a:1, grpc://a:2, grpc://a:3, grpc://a:4, grpc://a:5, "
                 "grpc://a:6]\n"),
            "agent.yaml:1: registry: names 6 registries, at most 5 are allowed");
  EXPECT_EQ(Load(ok + "namespace: a/b\n"),
            "agent.yaml:2: namespace: \"a/b\" may hold letters, digits and . _ - only");
  EXPECT_EQ(Load(ok + "zone: " + std::string(64, 'z') + "\n"),
            "agent.yaml:2: zone: is 64 characters long, at most 63 are allowed");
  EXPECT_EQ(Load(ok + "limits: {sessions: 0}\n"),
            "agent.yaml:2: limits.sessions: '0' is less than 1");
  EXPECT_EQ(Load("registry: [a=grpc://a:1, 'grpc://b:1,c:1']\n"), "");
  EXPECT_THAT(Load(ok + "listen: [unix:/a, a:70000]\n"),
              ::testing::AllOf(::testing::StartsWith("agent.yaml:2: listen[1]: "),
                               ::testing::HasSubstr("'70000' is not in 0..65535")));
  EXPECT_EQ(Load(ok + "listen: []\n"), "agent.yaml:2: listen: names no address");
  EXPECT_EQ(
      Load(ok + "listen: 0.0.0.0:7060\n"),
      "agent.yaml:2: listen[0]: other machines can connect to 0.0.0.0:7060, and calls are not "
      "encrypted; listen on a loopback address or unix:/PATH, set tls.cert and tls.key, or "
      "set allow_remote_plaintext");
  EXPECT_EQ(Load(ok + "listen: 0.0.0.0:7060\nallow_remote_plaintext: true\n"), "");
  const std::string encrypted = ok + "tls: {cert: c.pem, key: k.pem}\nxds: {bootstrap: /x}\n";
  EXPECT_THAT(Load(encrypted + "listen: 127.0.0.1:7060\n"),
              ::testing::HasSubstr("xds.bootstrap: needs a unix: address in listen"));
  EXPECT_EQ(Load(encrypted + "listen: [127.0.0.1:7060, unix:/a]\n"), "");
  EXPECT_THAT(Load(ok + "incarnation: has space\n"),
              ::testing::StartsWith("agent.yaml:2: incarnation: "));
  EXPECT_THAT(Load(ok + "client_name: " + std::string(129, 'a') + "\n"),
              ::testing::StartsWith("agent.yaml:2: client_name: "));
  EXPECT_EQ(Load(ok + "retry:\n  backoff:\n    initial: 10s\n    max: 1s\n"),
            "agent.yaml:5: retry.backoff.max: 1s is less than initial, 10s");
  EXPECT_EQ(Load(ok + "services:\n- {name: a, address: b, port: 0}\n"),
            "agent.yaml:3: services[0].port: 0 is not in 1..65535");
  EXPECT_EQ(Load(ok + "services:\n- name: a\n  address: b\n  port: 70000\n"),
            "agent.yaml:5: services[0].port: 70000 is not in 1..65535");
  EXPECT_EQ(Load(ok + "services:\n- {address: b, port: 1}\n"),
            "agent.yaml:3: services[0].name: is required");
  EXPECT_EQ(Load(ok + "services:\n- {name: a, port: 1}\n"),
            "agent.yaml:3: services[0].address: is required");
  EXPECT_THAT(Load(ok + "services:\n- {name: a, address: b..c, port: 1}\n"),
              ::testing::StartsWith("agent.yaml:3: services[0].address: \"b..c\" is neither"));
  EXPECT_THAT(Load(ok + "services:\n- {name: a, id: b c, address: b, port: 1}\n"),
              ::testing::StartsWith("agent.yaml:3: services[0].id: "));
  EXPECT_THAT(Load(ok + "services:\n- {name: a, namespace: b c, address: b, port: 1}\n"),
              ::testing::StartsWith("agent.yaml:3: services[0].namespace: "));
  EXPECT_THAT(Load(ok + "services:\n- name: a\n  address: b\n  port: 1\n  metadata:\n    k: " +
                   std::string(1025, 'x') + "\n"),
              ::testing::AllOf(::testing::StartsWith("agent.yaml:7: services[0].metadata[\"k\"]: "),
                               ::testing::HasSubstr("1024")));
  EXPECT_EQ(Load(ok + "services:\n- {name: a, address: b, port: 1}\n"
                      "- {name: a, address: b, port: 1}\n"),
            "agent.yaml:4: services[1].id: 'b:1' of a is services[0] already");
}

TEST_F(AgentConfigTest, ChecksAreReadStrictly) {
  const std::string ok =
      "registry: grpc://127.0.0.1:7070\nservices:\n- name: a\n  address: b\n  port: 1\n";
  EXPECT_EQ(Load(ok + "  checks:\n  - tcp: {}\n  - http: {path: /healthz}\n    interval: 5s\n"
                      "  - ttl: {ttl: 30s}\n  - command: {argv: [a, b]}\n  - grpc: {service: x}\n"),
            "");
  const auto specs = StaticServices(config_, *loader_);
  ASSERT_TRUE(specs.ok()) << specs.status();
  ASSERT_EQ((*specs)[0].checks.size(), 5u);
  EXPECT_EQ((*specs)[0].checks[0].name(), "tcp");
  EXPECT_EQ((*specs)[0].checks[0].tcp().address(), "b:1");
  EXPECT_EQ((*specs)[0].checks[4].grpc().address(), "b:1");
  EXPECT_EQ(CheckOptions((*specs)[0].checks[1]).interval, absl::Seconds(5));
  EXPECT_EQ(CheckOptions((*specs)[0].checks[1]).timeout, absl::Seconds(1));
  EXPECT_EQ(CheckOptions((*specs)[0].checks[2]).interval, absl::Seconds(30));
  const auto bad = [&](const std::string& check) { return Load(ok + "  checks:\n  - " + check); };
  EXPECT_EQ(
      bad("{interval: 5s}"),
      "agent.yaml:7: services[0].checks[0]: has no kind; set one of tcp, http, grpc, command, "
      "ttl");
  EXPECT_EQ(bad("{tcp: {}, http: {}}"),
            "agent.yaml:7: services[0].checks[0]: has several kinds; set one of tcp, http, grpc, "
            "command, ttl");
  EXPECT_EQ(bad("{tcp: {}, intervall: 5s}"),
            "agent.yaml:7: services[0].checks[0].intervall: unknown key; allowed: name, tcp, http, "
            "grpc, command, ttl, interval, timeout, rise, fall");
  EXPECT_EQ(bad("{tcp: {}, interval: soon}"),
            "agent.yaml:7: services[0].checks[0].interval: 'soon' is not a duration; write it as "
            "10s, 500ms or 1m30s");
  EXPECT_EQ(bad("{tcp: {}, interval: 10ms}"),
            "agent.yaml:7: services[0].checks[0].interval: '10ms' is not in 100ms..24h");
  EXPECT_EQ(bad("tcp: {}\n    interval: 1s\n    timeout: 2s\n"),
            "agent.yaml:9: services[0].checks[0].timeout: 2s is more than the interval, 1s");
  EXPECT_EQ(bad("{tcp: {}, rise: 0}"),
            "agent.yaml:7: services[0].checks[0].rise: '0' is not in 1..1000");
  EXPECT_EQ(bad("{ttl: {ttl: 5s}, fall: 2}"),
            "agent.yaml:7: services[0].checks[0].fall: is not for a ttl check, which the program "
            "itself reports");
  EXPECT_EQ(bad("{ttl: {}}"),
            "agent.yaml:7: services[0].checks[0].ttl.ttl: is required, as 30s: fails after so long "
            "in silence");
  EXPECT_EQ(bad("{command: {}}"),
            "agent.yaml:7: services[0].checks[0].command.argv: is required, as "
            "[/usr/bin/my-check, --quick]");
  EXPECT_EQ(bad("{http: {path: healthz}}"),
            "agent.yaml:7: services[0].checks[0].http.path: 'healthz' is not a path; as "
            "/healthz?full=1");
  EXPECT_EQ(bad("{http: {tls: {ca: " + dir_.Write("ca.crt", "") + "}}}"), "");
  EXPECT_EQ(
      bad("{http: {tls: {ca: /none/ca.crt}}}"),
      "agent.yaml:7: services[0].checks[0].http.tls.ca: '/none/ca.crt' cannot be read: No such "
      "file or directory");
  EXPECT_EQ(bad("{http: {headers: {\"X: y\": z}}}"),
            "agent.yaml:7: services[0].checks[0].http.headers[\"X: y\"]: is not the name of a "
            "header");
  EXPECT_THAT(bad("{http: {headers: {X: \"a\\r\\nEvil: 1\"}}}"),
              ::testing::HasSubstr("has a control character"));
  EXPECT_THAT(bad("{tcp: {address: nowhere}}"),
              ::testing::StartsWith("agent.yaml:7: services[0].checks[0].tcp.address: "));
  EXPECT_EQ(bad("{tcp: {}}\n  - {tcp: {}}"),
            "agent.yaml:8: services[0].checks[1].name: 'tcp' is checks[0] already");
  EXPECT_EQ(Load(ok + "  register_when_healthy: true\n"),
            "agent.yaml:6: services[0].register_when_healthy: needs checks");
  EXPECT_EQ(Load(ok + "  deregister_critical_after: 1m\n"),
            "agent.yaml:6: services[0].deregister_critical_after: needs checks");
}

TEST_F(AgentConfigTest, ThePodFillsInWhatIsNotSet) {
  dir_.Write("labels", "version=\"1.10\"\napp=\"orders\"\n");
  const std::string pod =
      "registry: grpc://127.0.0.1:7070\n"
      "pod: {name: orders-7f, ip: 10.1.2.3, uid: 1234-56, labels_file: " +
      dir_.File("labels") + "}\n";
  ASSERT_EQ(Load(pod + "services:\n- {name: orders, port: 80, metadata: {app: mine}}\n"), "");
  const auto specs = StaticServices(config_, *loader_);
  ASSERT_TRUE(specs.ok()) << specs.status();
  const ServiceInstance& instance = (*specs)[0].instance;
  EXPECT_EQ(instance.key().instance_id(), "orders-7f");
  EXPECT_EQ(instance.address(), "10.1.2.3");
  EXPECT_EQ(instance.metadata().at("version"), "1.10");
  EXPECT_EQ(instance.metadata().at("app"), "mine");
  EXPECT_EQ(ToFailbackOptions(config_).incarnation, "1234-56");
  EXPECT_EQ(ToFailbackOptions(config_).client_name, "failback-agent@orders-7f");
  EXPECT_THAT(Load("registry: grpc://a:1\npod: {labels_file: /no/such}\n"),
              ::testing::StartsWith("agent.yaml:2: pod.labels_file: /no/such cannot be read: "));
  dir_.Write("labels", "version\n");
  EXPECT_THAT(Load(pod), ::testing::HasSubstr("line 1: 'version' is not name=\"value\""));
}

}  // namespace
}  // namespace failback
