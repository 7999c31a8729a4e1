// A registry whose disk is full, or that is killed again and again: reads go on, writes are refused
// with the right code, nothing that was acknowledged is lost.

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/process/registry_client.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StoreFaultTest : public ::testing::Test {
 protected:
  void Start() {
    std::vector<std::string> args = {"--store", "sqlite://" + dir_.File("registry.db")};
    if (daemon_ != nullptr) args.insert(args.end(), {"--listen", daemon_->address()});
    daemon_ = std::make_unique<Daemon>(Daemon::Registry(args));
  }
  // The registry may write no further than this into any file.
  void LimitFiles(rlim_t bytes) {
    const rlimit limit{bytes, RLIM_INFINITY};
    ASSERT_EQ(prlimit(daemon_->process().pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  }

  const TempDir dir_;
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(StoreFaultTest, AFullDiskRefusesWritesAndRecovers) {
  Start();
  RegistryClient client(daemon_->address());
  const std::string session = client.Open("a")->session_id();
  std::vector<ServiceInstance> ten;
  for (int i = 0; i < 10; ++i) ten.push_back(MakeInstance("orders", absl::StrCat(i)));
  ASSERT_TRUE(client.Register(session, ten, 1).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = client.Subscribe(subscriber, "orders");
  ASSERT_TRUE(Eventually([&] { return subscriber->events().size() == 1; }));
  Daemon agent = Daemon::Agent(daemon_->address(), {"--listen", "unix:" + dir_.File("agent.sock")});
  ASSERT_EQ(Ctl(agent.address(), {"wait-ready"}).status, 0);

  LimitFiles(0);
  const absl::Status refused =
      client.Register(session, {MakeInstance("orders", "new")}, 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_STORE_READ_ONLY);
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_EQ(ReasonOf(client.Unregister(session, ten[0].key(), 2)),
            registry::v1::ERROR_REASON_STORE_READ_ONLY);
  EXPECT_THAT(client.Ids("orders"), SizeIs(10));
  EXPECT_TRUE(client.KeepAlive(session).ok());
  EXPECT_THAT(subscriber->events(), SizeIs(1));
  EXPECT_TRUE(daemon_->process().WaitForLine("the store cannot be written").has_value());
  // An agent keeps what is refused.
  EXPECT_EQ(
      Ctl(agent.address(), {"register", "orders", "--id", "kept", "--address", "h", "--port", "1"})
          .status,
      0);

  LimitFiles(RLIM_INFINITY);
  EXPECT_TRUE(daemon_->process().WaitForLine("the store can be written again").has_value());
  EXPECT_TRUE(Eventually([&] { return client.Ids("orders").size() == 11; }));
  EXPECT_TRUE(Eventually(
      [&] { return client.Register(session, {MakeInstance("orders", "new")}, 1).ok(); }));
  daemon_->Kill();
  Start();
  EXPECT_TRUE(Eventually([&] { return client.List("orders").ok(); }));
  EXPECT_THAT(client.Ids("orders"), SizeIs(12));
  EXPECT_TRUE(client.KeepAlive(session).ok());
}

// Root writes where it may not, but for this right.
std::vector<std::string> AsAnOrdinaryUser(std::vector<std::string> command) {
  if (geteuid() == 0) {
    command.insert(command.begin(), {"/usr/bin/setpriv", "--bounding-set=-dac_override", "--"});
  }
  return command;
}

TEST_F(StoreFaultTest, AReadOnlyFileIsServedAndNotWritten) {
  Start();
  const std::string address = daemon_->address();
  std::string session;
  {
    RegistryClient client(address);
    session = client.Open("a")->session_id();
    ASSERT_TRUE(client.Register(session, {MakeInstance("orders", "1")}, 1).ok());
  }
  ASSERT_EQ(daemon_->Stop(), 0);
  const std::string store = dir_.File("registry.db");
  ASSERT_EQ(chmod(store.c_str(), 0444), 0);

  const auto process = Process::Start(AsAnOrdinaryUser(
      {RegistryBinary(), "--store", "sqlite://" + store, "--listen", address, "--admin", ""}));
  ASSERT_TRUE(process->WaitForLine("listening on").has_value()) << process->Describe();
  {
    RegistryClient client(address);
    EXPECT_THAT(client.Ids("orders"), ElementsAre("1"));
    EXPECT_TRUE(client.KeepAlive(session).ok());
    const absl::Status refused =
        client.Register(session, {MakeInstance("orders", "2")}, 1).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
    EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_STORE_READ_ONLY);
    EXPECT_TRUE(RetryDelayOf(refused).has_value());
    EXPECT_THAT(client.Ids("orders"), ElementsAre("1"));
  }
  EXPECT_TRUE(process->WaitForLine("the store cannot be written").has_value());
  process->Signal(SIGTERM);
  EXPECT_EQ(process->WaitForExit(), 0);

  ASSERT_EQ(chmod(store.c_str(), 0644), 0);
  Start();
  RegistryClient client(address);
  EXPECT_TRUE(client.Register(session, {MakeInstance("orders", "2")}, 1).ok());
  EXPECT_THAT(client.Ids("orders"), ElementsAre("1", "2"));
}

TEST_F(StoreFaultTest, ADamagedStoreIsNotOpenedAndIsNamed) {
  Start();
  {
    RegistryClient client(daemon_->address());
    ASSERT_TRUE(client.Register("", {MakeInstance("orders", "1")}).ok());
  }
  EXPECT_EQ(daemon_->Stop(), 0);
  const std::string damaged = dir_.Write("damaged.db", std::string(20000, 'x'));
  const RunResult result =
      RunProcess({RegistryBinary(), "--listen", "127.0.0.1:0", "--store", "sqlite://" + damaged});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr(damaged));
}

}  // namespace
}  // namespace failback
