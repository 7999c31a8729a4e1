// What an agent keeps in its state directory, as operators meet it: what was cancelled, a directory
// that was copied to another host, and a journal that cannot be written.

#include <sqlite3.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Args = std::vector<std::string>;

class AgentStateTest : public ::testing::Test {
 protected:
  Daemon StartAgent(const std::string& state = "state") {
    return Daemon::Agent(registry_->address(), {"--state-dir", dir_.File(state), "--session-ttl",
                                                "3s", "--admin", "127.0.0.1:0"});
  }
  static RunResult Register(Daemon& agent, const std::string& id, const std::string& wait,
                            const std::string& port = "80") {
    return Ctl(agent.address(), {"register", "orders", "--id", id, "--address", "10.0.0.1",
                                 "--port", port, "--wait", wait});
  }
  void StartRegistry() {
    registry_.emplace(Daemon::Registry({"--store", "sqlite://" + dir_.File("r.db"), "--listen",
                                        "unix:" + dir_.File("r.sock"), "--admin", "127.0.0.1:0"}));
  }
  std::string JournalFile(const std::string& state = "state") const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.File(state))) {
      if (entry.path().filename() == "journal.db") return entry.path();
    }
    return "";
  }

  const TempDir dir_;
  std::optional<Daemon> registry_;
};

TEST_F(AgentStateTest, ACancelledUnregisterIsNotCarriedOutByTheNextLife) {
  StartRegistry();
  Daemon agent = StartAgent();
  ASSERT_EQ(Register(agent, "a", "acknowledged").status, 0);
  registry_->Kill();
  const RunResult unregistered = Ctl(agent.address(), {"unregister", "orders", "--id", "a"});
  ASSERT_EQ(unregistered.status, 0) << unregistered.err;
  const RunResult cancelled = Ctl(agent.address(), {"cancel", "unregister default/orders/a"});
  ASSERT_EQ(cancelled.status, 0) << cancelled.err;
  EXPECT_TRUE(agent.process().WaitForLine("cancelled").has_value()) << agent.process().Describe();
  agent.Kill();
  StartRegistry();

  Daemon again = StartAgent();
  ASSERT_EQ(Register(again, "b", "acknowledged").status, 0);
  EXPECT_THAT(PendingAt(again.address()), IsEmpty());
  // The comparison with the registry repairs what a concurrent writer has done there, and that
  // alone.
  ASSERT_EQ(Ctl(registry_->address(), {"unregister", "orders", "--id", "b"}).status, 0);
  EXPECT_TRUE(Eventually([&] {
    const auto ids = ListedIds(registry_->address(), "orders");
    return std::find(ids.begin(), ids.end(), "b") != ids.end();
  })) << again.process().Describe();
  EXPECT_THAT(ListedIds(registry_->address(), "orders"), ElementsAre("a", "b"));
  // A new intent is carried out.
  EXPECT_EQ(
      Ctl(again.address(), {"unregister", "orders", "--id", "a", "--wait", "acknowledged"}).status,
      0);
  EXPECT_THAT(ListedIds(registry_->address(), "orders"), ElementsAre("b"));
}

TEST_F(AgentStateTest, ACopiedStateDirectoryInUseIsNoticedAndTheOriginalKeepsItsInstances) {
  StartRegistry();
  Daemon original = StartAgent("original");
  ASSERT_EQ(Register(original, "a", "acknowledged", "1").status, 0);
  std::filesystem::copy(dir_.File("original"), dir_.File("copy"),
                        std::filesystem::copy_options::recursive);
  ASSERT_EQ(Register(original, "later", "acknowledged", "1").status, 0);

  Daemon copy = StartAgent("copy");
  ASSERT_EQ(Register(copy, "b", "acknowledged", "2").status, 0);
  Register(copy, "a", "accepted", "2");
  const char* const kNoticed = "another process runs under this agent's incarnation";
  ASSERT_TRUE(original.process().WaitForLine(kNoticed).has_value())
      << original.process().Describe() << copy.process().Describe();
  EXPECT_TRUE(copy.process().WaitForLine("another process has opened this agent's session"))
      << copy.process().Describe();
  EXPECT_TRUE(registry_->process().WaitForLine("two processes use one session"))
      << registry_->process().Describe();

  // Each has its own, and what both want is the original's; the other one shows it.
  EXPECT_TRUE(Eventually([&] {
    const std::vector<agent::v1::PendingOperation> pending = PendingAt(copy.address());
    return std::any_of(pending.begin(), pending.end(), [](const auto& row) {
      return row.key().instance_id() == "a" && row.state() == agent::v1::PENDING_STATE_SUPERSEDED;
    });
  })) << Ctl(copy.address(), {"pending"}).out;
  const auto all = [&] {
    return ListedIds(registry_->address(), "orders") == std::vector<std::string>{"a", "b", "later"};
  };
  EXPECT_TRUE(Eventually(all)) << Ctl(registry_->address(), {"list", "orders"}).out;
  EXPECT_TRUE(Eventually([&] { return PendingAt(original.address()).empty(); }))
      << Ctl(original.address(), {"pending"}).out;

  // Told wherever an operator looks.
  EXPECT_THAT(Ctl(original.address(), {"status"}).out,
              HasSubstr("another process uses the one before"));
  EXPECT_THAT(Http(original.admin(), "GET", "/overview").body, HasSubstr("twinTime"));
  EXPECT_THAT(Http(original.admin(), "GET", "/metrics").body,
              HasSubstr("failback_agent_twins_total"));
  EXPECT_TRUE(Eventually([&] {
    return Ctl(registry_->address(), {"agents", "--trouble"})
               .out.find("another process used its incarnation") != std::string::npos;
  })) << Ctl(registry_->address(), {"agents"}).out;

  // Neither takes the other's along when it goes.
  EXPECT_EQ(copy.Stop(), 0);
  EXPECT_TRUE(Eventually([&] {
    return ListedIds(registry_->address(), "orders") == std::vector<std::string>{"a", "later"};
  })) << Ctl(registry_->address(), {"list", "orders"}).out;
  EXPECT_EQ(Ctl(registry_->address(), {"list", "orders", "-o", "json"}).out.find("\"port\": 2"),
            std::string::npos);
  EXPECT_THAT(PendingAt(original.address()), IsEmpty());
}

TEST_F(AgentStateTest, AJournalThatCannotBeWrittenIsToldWhereverAnOperatorLooks) {
  constexpr char kJournalTrouble[] = "its intent journal cannot be written (STORE_READ_ONLY): ";
  StartRegistry();
  Daemon agent = StartAgent();
  ASSERT_EQ(Register(agent, "a", "acknowledged").status, 0);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(JournalFile().c_str(), &other), SQLITE_OK);
  sqlite3_busy_timeout(other, 30000);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);

  // What would not survive is not accepted, however often it is stated.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const RunResult refused = Ctl(agent.address(), {"unregister", "orders", "--id", "a"});
    EXPECT_NE(refused.status, 0) << refused.out;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("journal.db"), HasSubstr("intent journal")));
    EXPECT_EQ(refused.err.find("registry's store"), std::string::npos) << refused.err;
  }
  EXPECT_THAT(Ctl(agent.address(), {"status"}).out,
              AllOf(HasSubstr("journal       cannot be written since"), HasSubstr("journal.db")));
  const RunResult ready = Ctl(agent.address(), {"wait-ready", "--deadline", "100ms"});
  EXPECT_NE(ready.status, 0);
  EXPECT_THAT(ready.err, HasSubstr("would not survive this agent"));
  EXPECT_THAT(Http(agent.admin(), "GET", "/overview").body, HasSubstr("journalError"));
  EXPECT_TRUE(Eventually([&] {
    return Ctl(registry_->address(), {"agents", "--trouble"}).out.find(kJournalTrouble) !=
           std::string::npos;
  })) << Ctl(registry_->address(), {"agents"}).out;
  EXPECT_THAT(Ctl(registry_->address(), {"agents", "--trouble"}).out, HasSubstr("(SQLite "))
      << "the cause, however long the path is";

  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_TRUE(Eventually([&] {
    return Ctl(agent.address(), {"status"}).out.find("cannot be written") == std::string::npos;
  }));
  EXPECT_EQ(Ctl(agent.address(), {"wait-ready"}).status, 0);
  EXPECT_TRUE(Eventually([&] {
    return Ctl(registry_->address(), {"agents", "--trouble"}).out.find(kJournalTrouble) ==
           std::string::npos;
  }));
}

}  // namespace
}  // namespace failback
