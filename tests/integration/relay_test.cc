// An agent behind an agent: a registry, a relay, and an agent that knows the relay alone. What is
// registered and followed through two hops arrives, and goes on when the relay or the registry was
// away (docs/operations.md, "Relays").

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/eventually.h"
#include "tests/util/observed_states.h"
#include "tests/util/process.h"

namespace failback {
namespace {

class RelayTest : public ::testing::Test {
 protected:
  RelayTest() {
    StartRegistry("127.0.0.1:0");
    StartRelay("127.0.0.1:0");
    leaf_ = std::make_unique<Daemon>(
        Daemon::Agent(relay_->address(), {"--listen", "unix:" + dir_.File("leaf.sock")}));
    follower_ = Process::Start(
        {CtlBinary(), "--target", leaf_->address(), "subscribe", "orders", "-o", "json"});
  }

  void StartRegistry(const std::string& listen) {
    std::vector<std::string> args = {"--store", "sqlite://" + dir_.File("registry.db")};
    if (listen != "127.0.0.1:0") args.insert(args.end(), {"--listen", listen});
    registry_ = std::make_unique<Daemon>(Daemon::Registry(args));
  }
  void StartRelay(const std::string& listen) {
    std::vector<std::string> args;
    if (listen != "127.0.0.1:0") args = {"--listen", listen};
    relay_ = std::make_unique<Daemon>(Daemon::Agent(registry_->address(), args));
  }

  void Register(const std::string& target, const std::string& id) {
    const RunResult result = Ctl(target, {"register", "orders", "--id", id, "--address", "10.0.0.1",
                                          "--port", "8080", "--wait", "acknowledged"});
    EXPECT_EQ(result.status, 0) << result.err;
  }

  // Until the registry lists exactly these.
  void ExpectListed(const std::vector<std::string>& ids) {
    EXPECT_TRUE(Eventually([&] { return ListedIds(registry_->address(), "orders") == ids; }))
        << registry_->process().Describe();
  }

  // Until the follower at the leaf has the set with these ids, stale or not.
  void ExpectSeen(const std::set<std::string>& ids, bool stale) {
    EXPECT_TRUE(follower_->WaitForOutput([&](const std::string& out) {
      ObservedStates observed;
      for (const auto& event : ParseEvents(out)) {
        const absl::Status status = observed.Apply(event);
        EXPECT_TRUE(status.ok()) << status;
        if (!status.ok()) return true;
      }
      return !observed.states().empty() && observed.CurrentIds() == ids &&
             observed.states().back().stale == stale;
    })) << follower_->Describe();
  }

  const TempDir dir_;
  std::unique_ptr<Daemon> registry_;
  std::unique_ptr<Daemon> relay_;
  std::unique_ptr<Daemon> leaf_;
  std::unique_ptr<Process> follower_;
};

TEST_F(RelayTest, WhatIsRegisteredAndFollowedComesThroughTwoHops) {
  ExpectSeen({}, false);
  Register(registry_->address(), "direct");
  ExpectSeen({"direct"}, false);
  Register(leaf_->address(), "leaf");
  ExpectSeen({"direct", "leaf"}, false);
  ExpectListed({"direct", "leaf"});
}

TEST_F(RelayTest, AnOutageOfTheRegistryIsStaleTwoHopsAwayAndOver) {
  Register(registry_->address(), "a");
  ExpectSeen({"a"}, false);
  const std::string address = registry_->address();
  registry_->Kill();
  ExpectSeen({"a"}, true);
  StartRegistry(address);
  ExpectSeen({"a"}, false);
  Register(registry_->address(), "b");
  ExpectSeen({"a", "b"}, false);
}

TEST_F(RelayTest, ARelayThatIsKilledTakesNoSetAwayAndItsLeavesGoOn) {
  Register(leaf_->address(), "leaf");
  ExpectSeen({"leaf"}, false);
  const std::string address = relay_->address();
  relay_->Kill();
  ExpectSeen({"leaf"}, true);
  Register(registry_->address(), "meanwhile");
  StartRelay(address);
  ExpectSeen({"leaf", "meanwhile"}, false);
  ExpectListed({"leaf", "meanwhile"});
}

}  // namespace
}  // namespace failback
