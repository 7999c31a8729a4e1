// A registry and sidecars with configuration files, as real processes.

#ifndef FAILBACK_TESTS_AGENT_SIDECAR_SIDECAR_FIXTURE_H_
#define FAILBACK_TESTS_AGENT_SIDECAR_SIDECAR_FIXTURE_H_

#include <map>
#include <string>
#include <vector>

#include "failback/agent/v1/agent.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {

class SidecarTest : public ::testing::Test {
 protected:
  Daemon StartAgent(const std::string& config, std::vector<std::string> args = {}) {
    args.insert(args.begin(), {"--config", config, "--listen", "unix:" + dir_.File("agent.sock")});
    return Daemon::Agent(registry_.address(), args);
  }

  std::string socket() const { return "unix:" + dir_.File("agent.sock"); }

  // What `failbackctl list SERVICE` shows at the registry: "id address:port status".
  std::vector<std::string> Listed(const std::string& service) const {
    const RunResult result = Ctl(registry_.address(), {"list", service, "-o", "json"});
    if (result.status != 0) return {result.err};
    registry::v1::ListResponse list;
    if (!google::protobuf::util::JsonStringToMessage("{\"records\":" + result.out + "}", &list)
             .ok()) {
      return {result.out};
    }
    std::vector<std::string> lines;
    for (const auto& record : list.records()) {
      const auto& instance = record.instance();
      const std::string status = registry::v1::HealthStatus_Name(instance.status());
      lines.push_back(instance.key().instance_id() + " " + instance.address() + ":" +
                      std::to_string(instance.port()) + " " +
                      status.substr(sizeof("HEALTH_STATUS_") - 1));
    }
    return lines;
  }

  ::testing::AssertionResult BecomesListed(const std::string& service,
                                           const std::vector<std::string>& lines) const {
    if (Eventually([&] { return Listed(service) == lines; })) return ::testing::AssertionSuccess();
    auto failure = ::testing::AssertionFailure() << "listed is";
    for (const std::string& line : Listed(service)) failure << "\n  " << line;
    return failure << "\n" << Ctl(socket(), {"status"}).out;
  }

  agent::v1::GetStatusResponse AgentStatus() const {
    agent::v1::GetStatusResponse status;
    const RunResult result = Ctl(socket(), {"status", "-o", "json"});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(result.out, &status).ok())
        << result.out;
    return status;
  }

  const TempDir dir_;
  Daemon registry_ = Daemon::Registry({"--store", "memory:"});
};

}  // namespace failback

#endif  // FAILBACK_TESTS_AGENT_SIDECAR_SIDECAR_FIXTURE_H_
