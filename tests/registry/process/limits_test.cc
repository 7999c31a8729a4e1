// Each limit of the configuration, on a real registry: what is over it is refused with its reason,
// and with a delay where waiting helps; the rest goes on.

#include <sqlite3.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/process/registry_client.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_LIMIT_REACHED;
using registry::v1::ERROR_REASON_OVERLOADED;
using registry::v1::ERROR_REASON_TOO_LARGE;
using ::testing::HasSubstr;

class LimitsTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> args, const std::string& store = "memory:") {
    args.insert(args.end(), {"--store", store});
    daemon_ = std::make_unique<Daemon>(Daemon::Registry(args));
    client_ = NewClient();
  }
  std::unique_ptr<RegistryClient> NewClient() {
    return std::make_unique<RegistryClient>(daemon_->address());
  }

  // A limit that stays until something is removed: no use in waiting.
  static void ExpectLimit(const absl::Status& status, const std::string& limit) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ReasonOf(status), ERROR_REASON_LIMIT_REACHED) << status;
    EXPECT_EQ(ReasonMetadata(status, "limit"), limit);
    EXPECT_THAT(std::string(status.message()), HasSubstr("at most " + limit + " are allowed; "));
    EXPECT_FALSE(RetryDelayOf(status).has_value());
  }
  // A limit that passes by itself; `text` tells which.
  static void ExpectOverload(const absl::Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ReasonOf(status), ERROR_REASON_OVERLOADED) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_TRUE(RetryDelayOf(status).has_value());
  }

  // The status with which a new subscription ends; OK when it was taken.
  absl::Status Subscribe(RegistryClient& client, const std::string& session = "",
                         const std::string& id = "") {
    SubscribeRequest request;
    request.set_session_id(session);
    request.set_subscription_id(id);
    request.mutable_selector()->set_service("orders");
    auto listener = std::make_shared<FakeSubscriber>();
    streams_.push_back((*client).Subscribe(request, listener));
    EXPECT_TRUE(
        Eventually([&] { return !listener->events().empty() || listener->ended().has_value(); }));
    return listener->ended().value_or(absl::OkStatus());
  }

  // Calls many times at once while the store is locked for writing by another program.
  void ExpectOverloadWhileTheStoreIsStuck(const std::string& path, int instances,
                                          const std::string& text) {
    sqlite3* other = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &other), SQLITE_OK);
    sqlite3_busy_timeout(other, 5000);
    ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
    const absl::Time deadline = absl::Now() + kProcessTimeout;
    std::vector<std::thread> callers;
    callers.reserve(20);
    std::atomic<int> overloaded = 0;
    for (int i = 0; i < 20; ++i) {
      callers.emplace_back([&, i] {
        RegistryClient caller(daemon_->address());
        std::vector<ServiceInstance> batch;
        batch.reserve(static_cast<size_t>(instances));
        for (int k = 0; k < instances; ++k) {
          batch.push_back(MakeInstance("orders", absl::StrCat(i, "-", k)));
        }
        while (overloaded == 0 && absl::Now() < deadline) {
          const absl::Status status = caller.Register("", batch).status();
          if (ReasonOf(status) != ERROR_REASON_OVERLOADED) continue;
          ExpectOverload(status, text);
          ++overloaded;
        }
      });
    }
    for (auto& caller : callers) caller.join();
    EXPECT_GT(overloaded, 0);
    sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr);
    sqlite3_close(other);
    EXPECT_TRUE(
        Eventually([&] { return client_->Register("", {MakeInstance("orders", "after")}).ok(); }));
  }

  TempDir dir_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<RegistryClient> client_;
  std::vector<std::unique_ptr<SubscribeStream>> streams_;
};

TEST_F(LimitsTest, InstancesInAll) {
  Start({"--limits-max-instances", "2"});
  ASSERT_TRUE(client_->Register("", {MakeInstance("orders", "1"), MakeInstance("b", "2")}).ok());
  ExpectLimit(client_->Register("", {MakeInstance("orders", "3")}).status(), "2");
  EXPECT_TRUE(client_->Register("", {MakeInstance("orders", "1", 81)}).ok()) << "an update";
  ASSERT_TRUE(client_->Unregister("", MakeInstance("orders", "1").key()).ok());
  EXPECT_TRUE(client_->Register("", {MakeInstance("orders", "3")}).ok());
}

TEST_F(LimitsTest, InstancesOfOneSession) {
  Start({"--limits-max-instances-per-session", "1"});
  const auto a = client_->Open("a");
  EXPECT_EQ(a->limits().max_instances_per_session(), 1u);
  ASSERT_TRUE(client_->Register(a->session_id(), {MakeInstance("orders", "1")}).ok());
  ExpectLimit(client_->Register(a->session_id(), {MakeInstance("orders", "2")}).status(), "1");
  const auto b = client_->Open("b");
  EXPECT_TRUE(client_->Register(b->session_id(), {MakeInstance("orders", "2")}).ok());
}

TEST_F(LimitsTest, Sessions) {
  Start({"--limits-max-sessions", "1"});
  const auto a = client_->Open("a");
  ASSERT_TRUE(a.ok());
  ExpectLimit(client_->Open("b").status(), "1");
  EXPECT_TRUE(client_->Open("a")->resumed());
}

TEST_F(LimitsTest, SizesOfACall) {
  Start({"--limits-max-batch", "2", "--limits-max-request-bytes", "65536"});
  const auto session = client_->Open("a");
  EXPECT_EQ(session->limits().max_batch(), 2u);
  EXPECT_EQ(session->limits().max_request_bytes(), 65536u);
  const absl::Status batch =
      client_
          ->Register("", {MakeInstance("a", "1"), MakeInstance("a", "2"), MakeInstance("a", "3")})
          .status();
  EXPECT_EQ(batch.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(batch), ERROR_REASON_TOO_LARGE) << batch;
  // More bytes than the server takes at all.
  ListRequest large;
  large.set_page_token(std::string(100000, 'x'));
  const absl::Status bytes = CallAndWait(**client_, &Registry::List, large).status();
  EXPECT_EQ(bytes.code(), absl::StatusCode::kResourceExhausted) << bytes;
  EXPECT_FALSE(RetryDelayOf(bytes).has_value());
  EXPECT_TRUE(client_->Register("", {MakeInstance("a", "1")}).ok());
}

TEST_F(LimitsTest, SubscriptionsInAll) {
  Start({"--limits-max-subscriptions", "1"});
  EXPECT_TRUE(Subscribe(*client_).ok());
  ExpectOverload(Subscribe(*NewClient()),
                 "too many subscriptions at once, at most 1 are allowed; try again in 1s");
  streams_.clear();
  EXPECT_TRUE(Eventually([&] { return Subscribe(*client_).ok(); })) << "the place is free again";
}

TEST_F(LimitsTest, SubscriptionsOfOneConnection) {
  Start({"--limits-max-subscriptions-per-connection", "1"});
  const auto other = NewClient();
  EXPECT_TRUE(Subscribe(*client_).ok());
  ExpectOverload(Subscribe(*client_), "subscriptions on one connection at once, at most 1 are");
  EXPECT_TRUE(Subscribe(*other).ok());
  EXPECT_TRUE(client_->List().ok());
}

TEST_F(LimitsTest, SubscriptionsOfOneSession) {
  Start({"--limits-max-subscriptions-per-session", "1"});
  const std::string session = client_->Open("a")->session_id();
  EXPECT_TRUE(Subscribe(*client_, session, "one").ok());
  ExpectLimit(Subscribe(*client_, session, "two"), "1");
  EXPECT_TRUE(Subscribe(*client_, client_->Open("b")->session_id(), "one").ok());
}

TEST_F(LimitsTest, CallsInFlight) {
  Start({"--limits-max-calls-in-flight", "2"}, "sqlite://" + dir_.File("r.db"));
  ExpectOverloadWhileTheStoreIsStuck(dir_.File("r.db"), 1, "calls at once, at most 2 are");
}

TEST_F(LimitsTest, RegistrationsThatWaitForTheDisk) {
  Start({"--limits-max-queued", "5"}, "sqlite://" + dir_.File("r.db"));
  ExpectOverloadWhileTheStoreIsStuck(dir_.File("r.db"), 10, "wait for their commit, at most 5 may");
}

}  // namespace
}  // namespace failback
