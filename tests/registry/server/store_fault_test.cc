// A registry whose disk is full, or that is killed again and again: reads go on, writes are refused
// with the right code, nothing that was acknowledged is lost.

#include <sys/resource.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/server/registry_client.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

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
