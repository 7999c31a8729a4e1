// A configuration file that changes while the sidecar runs.

#include <csignal>
#include <string>

#include "tests/agent/sidecar/sidecar_fixture.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

std::string Services(const std::string& ids) {
  std::string yaml = "services:\n";
  for (const char id : ids) {
    yaml += std::string("- {name: orders, id: ") + id + ", address: h, port: 1}\n";
  }
  return yaml;
}

class HotReloadTest : public SidecarTest {
 protected:
  // Replaces the file as editors and tools do, by a rename.
  void Replace(const std::string& content) {
    const std::string part = dir_.Write("agent.yaml.part", content);
    ASSERT_EQ(RunProcess({"/bin/mv", part, dir_.File("agent.yaml")}).status, 0);
  }

  void Run(const std::string& script) {
    const RunResult result = RunProcess({"/bin/sh", "-ec", script});
    ASSERT_EQ(result.status, 0) << result.err;
  }
};

TEST_F(HotReloadTest, AFileThatChangesIsTakenAndAnInvalidOneRefused) {
  Daemon agent = StartAgent(dir_.Write("agent.yaml", Services("ab")));
  EXPECT_TRUE(BecomesListed("orders", {"a h:1 UNSPECIFIED", "b h:1 UNSPECIFIED"}));
  Replace(Services("bc"));
  EXPECT_TRUE(BecomesListed("orders", {"b h:1 UNSPECIFIED", "c h:1 UNSPECIFIED"}));
  EXPECT_EQ(AgentStatus().config().reloads(), 1u);

  Replace("services:\n- {name: orders, id: x, address: h, prot: 1}\n");
  ASSERT_TRUE(Eventually([&] { return AgentStatus().config().refused() == 1; }));
  EXPECT_THAT(AgentStatus().config().error(),
              HasSubstr("agent.yaml:2: services[0].prot: unknown key; allowed: "));
  EXPECT_THAT(Ctl(socket(), {"status"}).out, HasSubstr("1 reloads, 1 refused\n"));
  EXPECT_THAT(Ctl(socket(), {"status"}).out, HasSubstr("not in force: "));
  EXPECT_THAT(agent.process().err(), HasSubstr("configuration refused, the one before stays"));
  EXPECT_EQ(Listed("orders").size(), 2u);

  // Written in place.
  dir_.Write("agent.yaml", Services("d"));
  EXPECT_TRUE(BecomesListed("orders", {"d h:1 UNSPECIFIED"}));
  EXPECT_EQ(AgentStatus().config().error(), "");
}

TEST_F(HotReloadTest, WhatCannotChangeLiveIsNamed) {
  Daemon agent = StartAgent(dir_.Write("agent.yaml", Services("a")));
  Replace("session_ttl: 7s\n" + Services("b"));
  ASSERT_TRUE(Eventually([&] { return AgentStatus().config().refused() == 1; }));
  EXPECT_THAT(AgentStatus().config().error(),
              HasSubstr("agent.yaml:1: session_ttl: cannot change while the agent runs; change it "
                        "back, or restart the agent"));
  EXPECT_TRUE(BecomesListed("orders", {"a h:1 UNSPECIFIED"}));
  // A flag wins over the file after a reload as before it.
  Replace("registry: grpc://127.0.0.1:1\n" + Services("c"));
  EXPECT_TRUE(BecomesListed("orders", {"c h:1 UNSPECIFIED"}));
}

TEST_F(HotReloadTest, AConfigMapIsFollowedThroughItsLinks) {
  // As the kubelet lays it out: agent.yaml -> ..data/agent.yaml, ..data -> a folder with a date.
  const std::string mount = dir_.File("mount");
  Run("mkdir -p " + mount + "/..1 && cd " + mount + " && ln -s ..1 ..data" +
      " && ln -s ..data/agent.yaml agent.yaml");
  dir_.Write("mount/..1/agent.yaml", Services("a"));
  Daemon agent = StartAgent(mount + "/agent.yaml");
  EXPECT_TRUE(BecomesListed("orders", {"a h:1 UNSPECIFIED"}));
  for (const char id : {'b', 'c'}) {
    const std::string next = std::string("..") + id;
    Run("mkdir " + mount + "/" + next);
    dir_.Write("mount/" + next + "/agent.yaml", Services(std::string(1, id)));
    Run("cd " + mount + " && ln -s " + next + " ..data_tmp && mv -T ..data_tmp ..data");
    EXPECT_TRUE(BecomesListed("orders", {std::string(1, id) + " h:1 UNSPECIFIED"}));
  }
  EXPECT_EQ(AgentStatus().config().reloads(), 2u);
}

TEST_F(HotReloadTest, SighupReadsTheFileAnew) {
  Daemon agent = StartAgent(dir_.Write("agent.yaml", Services("a")));
  agent.process().Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return AgentStatus().config().reloads() == 1; }));
  EXPECT_EQ(agent.Stop(), 0);
}

}  // namespace
}  // namespace failback
