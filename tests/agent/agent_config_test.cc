#include "agent/agent_config.h"

#include <string>

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
    ConfigLoader loader({"failback-agent", "", ""}, AgentConfig::descriptor());
    const char* const argv[] = {"failback-agent", "--config", file.c_str()};
    EXPECT_FALSE(loader.ParseCommandLine(3, argv).has_value());
    config_.Clear();
    absl::Status status = loader.Load(&config_);
    if (status.ok()) status = ValidateAgentConfig(config_, loader);
    std::string message(status.message());
    // Without the folder, which is another each time.
    const size_t at = message.find(dir_.path() + "/");
    if (at != std::string::npos) message.erase(at, dir_.path().size() + 1);
    return message;
  }

  const TempDir dir_;
  AgentConfig config_;
};

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
  const RegisterRequest request = StaticRegistrations(config_);
  ASSERT_EQ(request.registrations_size(), 2);
  EXPECT_EQ(request.session_id(), "");
  const ServiceInstance& first = request.registrations(0).instance();
  EXPECT_EQ(first.key().namespace_(), "default");
  EXPECT_EQ(first.key().service(), "orders");
  EXPECT_EQ(first.key().instance_id(), "10.0.0.1:80");
  EXPECT_EQ(first.zone(), "eu-1");
  EXPECT_EQ(first.metadata().at("v"), "1.10");
  EXPECT_FALSE(first.has_weight());
  const ServiceInstance& second = request.registrations(1).instance();
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
retry: {retry_times: 2, retry_period: 250ms, backoff: {initial: 1s, max: 2s, jitter: 0.5}}
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
  EXPECT_EQ(options.retry.backoff.initial, absl::Seconds(1));
  EXPECT_EQ(options.retry.backoff.multiplier, 2);
  EXPECT_EQ(options.retry.backoff.max, absl::Seconds(2));
  EXPECT_EQ(options.retry.backoff.jitter, 0.5);
  ASSERT_EQ(Load("registry: grpc://127.0.0.1:7070\n"), "");
  EXPECT_THAT(ToFailbackOptions(config_).client_name, ::testing::StartsWith("failback-agent@"));
  EXPECT_FALSE(ToFailbackOptions(config_).retry.retry_period.has_value());
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

}  // namespace
}  // namespace failback
