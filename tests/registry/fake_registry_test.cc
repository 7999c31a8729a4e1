#include "tests/registry/fake_registry.h"

#include <optional>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace failback {
namespace {

RegisterRequest OneRegistration(const std::string& id) {
  RegisterRequest request;
  request.add_registrations()->mutable_instance()->mutable_key()->set_instance_id(id);
  return request;
}

TEST(FakeRegistryTest, AcknowledgesByDefault) {
  FakeRegistry fake;
  std::optional<absl::StatusOr<RegisterResponse>> answer;
  fake.Register(OneRegistration("a"), [&](auto response) { answer = std::move(response); });
  ASSERT_TRUE(answer.has_value() && answer->ok());
  ASSERT_EQ((*answer)->results_size(), 1);
  EXPECT_EQ((*answer)->results(0).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(fake.registers.last_request().registrations(0).instance().key().instance_id(), "a");
}

TEST(FakeRegistryTest, TakesQueuedAnswersFirst) {
  FakeRegistry fake;
  fake.lists.Answer(absl::UnavailableError("away"));
  std::vector<absl::StatusCode> codes;
  for (int i = 0; i < 2; ++i) {
    fake.List({}, [&](auto response) { codes.push_back(response.status().code()); });
  }
  EXPECT_EQ(codes,
            (std::vector<absl::StatusCode>{absl::StatusCode::kUnavailable, absl::StatusCode::kOk}));
}

TEST(FakeRegistryTest, HeldCallsCompleteInAnyOrderAndAtDestruction) {
  std::vector<std::string> order;
  {
    FakeRegistry fake;
    fake.registers.Hold();
    for (const char* id : {"a", "b", "c"}) {
      fake.Register(OneRegistration(id), [&order, id](auto response) {
        order.push_back(std::string(id) + (response.ok() ? "" : "!"));
      });
    }
    EXPECT_TRUE(order.empty());
    EXPECT_EQ(fake.registers.held_count(), 3u);
    EXPECT_TRUE(fake.registers.CompleteAt(1, RegisterResponse()));
    EXPECT_TRUE(fake.registers.Complete(RegisterResponse()));
  }
  EXPECT_EQ(order, (std::vector<std::string>{"b", "a", "c!"}));
}

TEST(FakeRegistryTest, SubscriptionIsPushedAndCancelled) {
  FakeRegistry fake;
  auto listener = std::make_shared<RecordingListener>();
  auto stream = fake.Subscribe({}, listener);
  auto subscription = fake.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  EXPECT_TRUE(subscription->Push(SubscribeResponse()));
  EXPECT_EQ(listener->events().size(), 1u);
  EXPECT_FALSE(subscription->cancelled());
  stream.reset();
  EXPECT_TRUE(subscription->cancelled());
  EXPECT_FALSE(subscription->Push(SubscribeResponse()));
  EXPECT_EQ(listener->events().size(), 1u);
  EXPECT_FALSE(listener->end().has_value());
}

TEST(FakeRegistryTest, WaitsForRequestsOfOtherThreads) {
  FakeRegistry fake;
  std::thread caller([&] { fake.List({}, [](auto) {}); });
  EXPECT_TRUE(fake.lists.WaitForRequests(1));
  caller.join();
  EXPECT_FALSE(fake.lists.WaitForRequests(2, absl::ZeroDuration()));
}

}  // namespace
}  // namespace failback
