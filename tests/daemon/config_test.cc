#include "daemon/config.h"

#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/config_file.h"
#include "failback/agent/v1/config.pb.h"
#include "failback/registry/v1/config.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using agent::v1::AgentConfig;
using registry::v1::RegistryConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ParseError(const std::string& yaml) {
  AgentConfig config;
  return std::string(ParseYaml("agent.yaml", yaml, &config).message());
}

TEST(ConfigFileTest, EveryKindOfValueIsRead) {
  AgentConfig config;
  ASSERT_TRUE(ParseYaml("agent.yaml", R"(
listen:
  - unix:/run/a.sock
  - 127.0.0.1:7060
registry: grpc://10.0.0.1:7070,10.0.0.2:7070
session_ttl: 1m30.5s
retry:
  retry_times: 3
  retry_period: 500ms
  backoff: {multiplier: 1.5, jitter: 0}
log: {level: debug, format: json}
services:
  - name: orders
    address: 127.0.0.1
    port: 8080
    weight: 0
    metadata: {version: 1.10, on: "yes", empty: ""}
    persistent: true
  - {name: payments, address: "::1", port: 8081}
)",
                        &config)
                  .ok());
  EXPECT_THAT(config.listen(), ElementsAre("unix:/run/a.sock", "127.0.0.1:7060"));
  EXPECT_THAT(config.registry(), ElementsAre("grpc://10.0.0.1:7070,10.0.0.2:7070"));
  EXPECT_EQ(config.session_ttl().seconds(), 90);
  EXPECT_EQ(config.session_ttl().nanos(), 500000000);
  EXPECT_EQ(config.retry().retry_times(), 3);
  EXPECT_EQ(config.retry().retry_period().nanos(), 500000000);
  EXPECT_EQ(config.retry().backoff().multiplier(), 1.5);
  EXPECT_EQ(config.log().level(), config::v1::LOG_LEVEL_DEBUG);
  EXPECT_EQ(config.log().format(), config::v1::LOG_FORMAT_JSON);
  ASSERT_EQ(config.services_size(), 2);
  EXPECT_EQ(config.services(0).port(), 8080u);
  EXPECT_TRUE(config.services(0).has_weight());
  EXPECT_EQ(config.services(0).weight(), 0u);
  EXPECT_FALSE(config.services(1).has_weight());
  EXPECT_TRUE(config.services(0).persistent());
  // Text stays text: neither 1.1 nor true.
  EXPECT_EQ(config.services(0).metadata().at("version"), "1.10");
  EXPECT_EQ(config.services(0).metadata().at("on"), "yes");
  EXPECT_EQ(config.services(0).metadata().at("empty"), "");
}

TEST(ConfigFileTest, EmptyFilesAndSectionsChangeNothing) {
  EXPECT_EQ(ParseError(""), "");
  EXPECT_EQ(ParseError("# all comments\n"), "");
  EXPECT_EQ(ParseError("log:\nservices:\n  # none yet\n"), "");
}

TEST(ConfigFileTest, ASingleTextIsAListOfOne) {
  AgentConfig config;
  ASSERT_TRUE(ParseYaml("f", "listen: a:1", &config).ok());
  EXPECT_THAT(config.listen(), ElementsAre("a:1"));
}

struct BadFile {
  const char* yaml;
  const char* error;
};

class BadFileTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, IsOneLineThatNamesThePlaceAndWhatIsAllowed) {
  EXPECT_EQ(ParseError(GetParam().yaml), GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadFileTest,
    ::testing::Values(
        BadFile{
            "listen: a:1\nregistri: x\n",
            "agent.yaml:2: registri: unknown key; allowed: listen, registry, "
            "namespace, zone, client_name, incarnation, session_ttl, retry, drain_deadline, "
            "log, allow_remote_plaintext, state_dir, services, limits, admin, socket, tls, "
            "known_tokens_file, policy_file, reload_interval, registry_tls, token_file, xds, dns, "
            "http, consul, eureka, pod"},
        BadFile{"retry:\n  backoff:\n    inital: 1s\n",
                "agent.yaml:3: retry.backoff.inital: unknown key; allowed: initial, multiplier, "
                "max, jitter"},
        BadFile{"services:\n- {name: a}\n- name: b\n  prot: 80\n",
                "agent.yaml:4: services[1].prot: unknown key; allowed: name, id, namespace, "
                "address, port, weight, zone, metadata, persistent, checks, "
                "register_when_healthy, deregister_critical_after"},
        BadFile{"listen: a\nlog: {level: info}\nlisten: b\n",
                "agent.yaml:3: listen: given twice; first in line 1"},
        BadFile{"services: [{metadata: {a: 1, a: 2}}]",
                "agent.yaml:1: services[0].metadata.a: given twice; first in line 1"},
        BadFile{"- a\n- b\n", "agent.yaml:1: expected a map of keys, found a list"},
        BadFile{"just text", "agent.yaml:1: expected a map of keys, found 'just text'"},
        BadFile{"log: debug", "agent.yaml:1: log: expected a map of keys, found 'debug'"},
        BadFile{"zone: {a: b}", "agent.yaml:1: zone: expected TEXT, found a map"},
        BadFile{"zone: [a]", "agent.yaml:1: zone: expected TEXT, found a list"},
        BadFile{"zone: z\nstate_dir:\n", "agent.yaml:2: state_dir: has no value; expected DIR"},
        BadFile{"listen: {a: b}", "agent.yaml:1: listen: expected a list, found a map"},
        BadFile{"listen: [[a]]", "agent.yaml:1: listen[0]: expected ADDRESS, found a list"},
        BadFile{"services: {name: a}", "agent.yaml:1: services: expected a list, found a map"},
        BadFile{"services: [a]", "agent.yaml:1: services[0]: expected a map of keys, found 'a'"},
        BadFile{"services: [~]",
                "agent.yaml:1: services[0]: expected a map of keys, found nothing"},
        BadFile{"services: [{metadata: x}]",
                "agent.yaml:1: services[0].metadata: expected a map, found 'x'"},
        BadFile{
            "services: [{metadata: {a: }}]",
            "agent.yaml:1: services[0].metadata[\"a\"]: has no value; write \"\" for an empty one"},
        BadFile{"services: [{metadata: {a: [b]}}]",
                "agent.yaml:1: services[0].metadata[\"a\"]: expected TEXT, found a list"},
        BadFile{"services:\n- port: http\n",
                "agent.yaml:2: services[0].port: 'http' is not a whole number from 0 up"},
        BadFile{"services:\n- port: -1\n",
                "agent.yaml:2: services[0].port: '-1' is not a whole number from 0 up"},
        BadFile{"services:\n- persistent: yes\n",
                "agent.yaml:2: services[0].persistent: 'yes' is not true or false"},
        BadFile{"retry: {retry_times: 1.5}",
                "agent.yaml:1: retry.retry_times: '1.5' is not a whole number"},
        BadFile{"retry: {retry_times: 3000000000}",
                "agent.yaml:1: retry.retry_times: '3000000000' is not in -1..2147483647"},
        BadFile{"retry: {retry_times: -2}",
                "agent.yaml:1: retry.retry_times: '-2' is less than -1"},
        BadFile{"retry: {backoff: {jitter: 1.1}}",
                "agent.yaml:1: retry.backoff.jitter: '1.1' is not in 0..1"},
        BadFile{"retry: {backoff: {multiplier: nan}}",
                "agent.yaml:1: retry.backoff.multiplier: 'nan' is not a number"},
        BadFile{"session_ttl: 10",
                "agent.yaml:1: session_ttl: '10' is not a duration; write it as 10s, 500ms or "
                "1m30s"},
        BadFile{"session_ttl: -5s",
                "agent.yaml:1: session_ttl: '-5s' is not a duration; write it as 10s, 500ms or "
                "1m30s"},
        BadFile{"session_ttl: inf",
                "agent.yaml:1: session_ttl: 'inf' is not a duration; write it as 10s, 500ms or "
                "1m30s"},
        BadFile{"session_ttl: 500ms", "agent.yaml:1: session_ttl: '500ms' is not in 1s..1h"},
        BadFile{"\n\nlog:\n  level: loud\n",
                "agent.yaml:4: log.level: 'loud' is not one of debug, info, warning, error"},
        BadFile{"log: {level: unspecified}",
                "agent.yaml:1: log.level: 'unspecified' is not one of debug, info, warning, "
                "error"},
        BadFile{"listen: a\n---\nlisten: b\n", "agent.yaml:3: a second document; one is allowed"},
        BadFile{"listen: [a\n", "agent.yaml:2: not YAML: did not find expected ',' or ']'"},
        BadFile{"listen: a\n\tzone: b\n",
                "agent.yaml:2: not YAML: found a tab character that violates indentation"}));

TEST(ConfigFileTest, AFileThatCannotBeReadIsNamed) {
  const TempDir dir;
  AgentConfig config;
  EXPECT_EQ(ParseYamlFile(dir.File("none.yaml"), &config).message(),
            dir.File("none.yaml") + ": cannot be read: No such file or directory");
  EXPECT_EQ(ParseYamlFile(dir.path(), &config).message(),
            dir.path() + ": cannot be read: Is a directory");
}

// A variable of the environment for the life of one test.
class ScopedEnv {
 public:
  ScopedEnv(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedEnv() { unsetenv(name_.c_str()); }

 private:
  const std::string name_;
};

class ConfigLoaderTest : public ::testing::Test {
 protected:
  // The exit status, or nullopt.
  std::optional<int> Parse(const std::vector<std::string>& args) {
    std::vector<const char*> argv = {"failback-agent"};
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    const std::optional<int> status =
        loader_.ParseCommandLine(static_cast<int>(argv.size()), argv.data());
    err_ = ::testing::internal::GetCapturedStderr();
    out_ = ::testing::internal::GetCapturedStdout();
    return status;
  }

  std::string LoadError() {
    config_.Clear();
    return std::string(loader_.Load(&config_).message());
  }

  const TempDir dir_;
  ConfigLoader loader_{{"failback-agent", "Summary.", "  failback-agent --config agent.yaml"},
                       AgentConfig::descriptor()};
  AgentConfig config_;
  std::string err_;
  std::string out_;
};

TEST_F(ConfigLoaderTest, DefaultsAreThoseOfTheMessage) {
  ASSERT_EQ(Parse({}), std::nullopt) << err_;
  ASSERT_EQ(LoadError(), "");
  EXPECT_THAT(config_.listen(), ElementsAre("unix:/run/failback/agent.sock"));
  EXPECT_EQ(config_.session_ttl().seconds(), 10);
  EXPECT_EQ(config_.retry().retry_times(), -1);
  EXPECT_FALSE(config_.retry().has_retry_period());
  EXPECT_EQ(config_.retry().backoff().initial().nanos(), 500000000);
  EXPECT_EQ(config_.retry().backoff().max().seconds(), 30);
  EXPECT_EQ(config_.log().level(), config::v1::LOG_LEVEL_INFO);
  EXPECT_EQ(config_.registry_size(), 0);
}

TEST_F(ConfigLoaderTest, FlagsWinOverEnvironmentWinsOverFileWinsOverDefaults) {
  const std::string file = dir_.Write("agent.yaml",
                                      "zone: file\n"
                                      "client_name: file\n"
                                      "session_ttl: 20s\n"
                                      "retry: {retry_times: 1, backoff: {max: 1s}}\n"
                                      "listen: [file:1, file:2]\n");
  const ScopedEnv client_name("FAILBACK_CLIENT_NAME", "env");
  const ScopedEnv retry_times("FAILBACK_RETRY_TIMES", "2");
  const ScopedEnv listen("FAILBACK_LISTEN", "env:1 env:2");
  // As Kubernetes sets them for a service called failback-registry; none of our keys.
  const ScopedEnv injected("FAILBACK_REGISTRY_PORT", "tcp://10.0.0.1:7070");
  ASSERT_EQ(Parse({"--config", file, "--retry-times", "-1", "--log-level=debug"}), std::nullopt)
      << err_;
  ASSERT_EQ(LoadError(), "");
  EXPECT_EQ(config_.zone(), "file");
  EXPECT_EQ(config_.client_name(), "env");
  EXPECT_EQ(config_.session_ttl().seconds(), 20);
  EXPECT_EQ(config_.retry().retry_times(), -1);
  EXPECT_EQ(config_.retry().backoff().max().seconds(), 1);
  EXPECT_EQ(config_.retry().backoff().initial().nanos(), 500000000);
  EXPECT_THAT(config_.listen(), ElementsAre("env:1", "env:2"));
  EXPECT_EQ(config_.log().level(), config::v1::LOG_LEVEL_DEBUG);
}

TEST_F(ConfigLoaderTest, AListFlagMayBeRepeated) {
  ASSERT_EQ(Parse({"--listen", "a:1", "--listen=c:1"}), std::nullopt) << err_;
  ASSERT_EQ(LoadError(), "");
  EXPECT_THAT(config_.listen(), ElementsAre("a:1", "c:1"));
}

TEST_F(ConfigLoaderTest, AFlagMayBeGivenAnEmptyValue) {
  ASSERT_EQ(Parse({"--admin=", "--zone", "x", "--client-name="}), std::nullopt) << err_;
  ASSERT_EQ(LoadError(), "");
  EXPECT_TRUE(config_.admin().has_listen());
  EXPECT_EQ(config_.admin().listen(), "");
  EXPECT_EQ(config_.zone(), "x");
}

TEST_F(ConfigLoaderTest, LoadsAgainWhenTheFileHasChanged) {
  const std::string file = dir_.Write("agent.yaml", "zone: a\n");
  ASSERT_EQ(Parse({"--config", file, "--client-name", "c"}), std::nullopt);
  ASSERT_EQ(LoadError(), "");
  EXPECT_EQ(config_.zone(), "a");
  dir_.Write("agent.yaml", "zone: b\n");
  ASSERT_EQ(LoadError(), "");
  EXPECT_EQ(config_.zone(), "b");
  EXPECT_EQ(config_.client_name(), "c");
}

TEST_F(ConfigLoaderTest, BadValuesNameTheFlagOrTheVariable) {
  ASSERT_EQ(Parse({"--session-ttl", "soon"}), std::nullopt);
  EXPECT_EQ(LoadError(),
            "--session-ttl: 'soon' is not a duration; write it as 10s, 500ms or 1m30s");
  ASSERT_EQ(Parse({"--zone", "\xff"}), std::nullopt);
  EXPECT_EQ(LoadError(), "--zone: '\\xff' is not UTF-8");
  ASSERT_EQ(Parse({"--session-ttl", "10s"}), std::nullopt);
  const ScopedEnv level("FAILBACK_LOG_LEVEL", "loud");
  EXPECT_EQ(LoadError(), "FAILBACK_LOG_LEVEL: 'loud' is not one of debug, info, warning, error");
}

TEST_F(ConfigLoaderTest, BadCommandLinesAreOneLineAndStatus2) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--registri", "x"},
       "failback-agent: --registri: unknown flag; see failback-agent --help\n"},
      {{"--registri=x"}, "failback-agent: --registri=x: unknown flag; see failback-agent --help\n"},
      {{"-x"}, "failback-agent: -x: unknown flag; see failback-agent --help\n"},
      {{"start"}, "failback-agent: start: unexpected argument; see failback-agent --help\n"},
      {{"--zone", "a", "--zone", "b"}, "failback-agent: --zone: given twice\n"},
      {{"--zone"},
       "failback-agent: --zone: its value is missing: TEXT; see failback-agent --help\n"},
      {{"--zone", "a", "b"}, "failback-agent: b: unexpected argument; see failback-agent --help\n"},
      {{"--listen", "a:1", "b:1"},
       "failback-agent: b:1: unexpected argument; see failback-agent --help\n"},
  };
  for (const auto& [args, error] : cases) {
    EXPECT_EQ(Parse(args), 2) << args[0];
    EXPECT_EQ(err_, error);
    EXPECT_EQ(out_, "");
  }
}

TEST_F(ConfigLoaderTest, HelpAndVersionGoToStdout) {
  EXPECT_EQ(Parse({"--version"}), 0);
  EXPECT_THAT(out_, HasSubstr("failback-agent 0."));
  EXPECT_EQ(Parse({"--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("Summary."));
  EXPECT_THAT(out_, HasSubstr("--retry-backoff-initial DURATION"));
  EXPECT_THAT(out_, HasSubstr("[unix:/run/failback/agent.sock]"));
  EXPECT_THAT(out_, HasSubstr("failback-agent --config agent.yaml"));
  EXPECT_EQ(err_, "");
}

TEST_F(ConfigLoaderTest, ErrorsFoundLaterNameThePlaceToo) {
  const std::string file = dir_.Write("agent.yaml", "services:\n- name: a\n  port: 0\n");
  ASSERT_EQ(Parse({"--config", file, "--zone", "x"}), std::nullopt);
  ASSERT_EQ(LoadError(), "");
  EXPECT_EQ(loader_.ErrorAt("services[0].port", "0 is not in 1..65535").message(),
            file + ":3: services[0].port: 0 is not in 1..65535");
  EXPECT_EQ(loader_.ErrorAt("services[0].address", "is required").message(),
            file + ":2: services[0].address: is required");
  EXPECT_EQ(loader_.ErrorAt("zone", "is bad").message(), "--zone: is bad");
  EXPECT_EQ(loader_.ErrorAt("registry", "is required").message(), file + ": registry: is required");
}

// Every key of both daemons has a help line, a valid default and names of its own.
TEST(ConfigKeysTest, AreComplete) {
  for (const auto* descriptor : {AgentConfig::descriptor(), RegistryConfig::descriptor()}) {
    std::set<std::string> flags;
    for (const ConfigKey& key : ConfigKeys(descriptor)) {
      EXPECT_NE(key.options().help(), "") << key.path;
      EXPECT_LE(key.options().help().size(), 90u) << key.path;
      EXPECT_TRUE(flags.insert(key.flag).second) << key.flag;
    }
    ConfigLoader loader({"x", "", ""}, descriptor);
    const char* const argv[] = {"x"};
    ASSERT_EQ(loader.ParseCommandLine(1, argv), std::nullopt);
    AgentConfig agent_config;
    RegistryConfig registry_config;
    google::protobuf::Message* config = &agent_config;
    if (descriptor == RegistryConfig::descriptor()) config = &registry_config;
    EXPECT_EQ(loader.Load(config).message(), "");
  }
}

}  // namespace
}  // namespace failback
