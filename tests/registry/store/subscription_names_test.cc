// Subscriptions of StoreRegistry by their names in a session.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/watch/subscription_hub.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::shared_ptr<FakeSubscriber> NewSubscriber() { return std::make_shared<FakeSubscriber>(); }

class NamedTest : public ::testing::Test {
 protected:
  std::unique_ptr<SubscribeStream> Subscribe(const std::shared_ptr<FakeSubscriber>& subscriber,
                                             uint64_t generation = 0, const std::string& id = "s") {
    SubscribeRequest request;
    request.set_session_id(session_);
    request.set_subscription_id(id);
    request.set_generation(generation);
    request.mutable_selector()->set_service("orders");
    return store_->Subscribe(request, subscriber);
  }
  absl::Status Unsubscribe(uint64_t generation = 0, const std::string& id = "s") {
    UnsubscribeRequest request;
    request.set_session_id(session_);
    request.set_subscription_id(id);
    request.set_generation(generation);
    return CallAndWait(*store_, &Registry::Unsubscribe, request).status();
  }
  static registry::v1::ErrorReason EndReason(const std::shared_ptr<FakeSubscriber>& subscriber) {
    EXPECT_TRUE(subscriber->ended().has_value());
    return ReasonOf(subscriber->ended().value_or(absl::OkStatus()));
  }

  StoreHarness store_;
  const std::string session_ = store_.Session("a");
};

TEST_F(NamedTest, NewerSubscribeTakesTheName) {
  auto first = NewSubscriber();
  auto second = NewSubscriber();
  const auto first_stream = Subscribe(first, 1);
  const auto second_stream = Subscribe(second, 2);
  EXPECT_EQ(EndReason(first), registry::v1::ERROR_REASON_REPLACED);
  ASSERT_TRUE(store_.Register("", MakeInstance("orders", "1")).ok());
  EXPECT_THAT(first->events(), SizeIs(1));
  EXPECT_THAT(second->ids(), ElementsAre("1"));
  auto late = NewSubscriber();
  const auto late_stream = Subscribe(late, 1);
  EXPECT_EQ(EndReason(late), registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_FALSE(second->ended().has_value());
}

TEST_F(NamedTest, SameGenerationAgainTakesTheNameToo) {
  auto first = NewSubscriber();
  auto second = NewSubscriber();
  const auto first_stream = Subscribe(first, 3);
  const auto second_stream = Subscribe(second, 3);
  EXPECT_EQ(EndReason(first), registry::v1::ERROR_REASON_REPLACED);
  EXPECT_FALSE(second->ended().has_value());
}

TEST_F(NamedTest, UnsubscribeEndsWithOkAndFencesLateSubscribes) {
  auto subscriber = NewSubscriber();
  const auto stream = Subscribe(subscriber, 1);
  EXPECT_EQ(ReasonOf(Unsubscribe(0, "other")), registry::v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_TRUE(Unsubscribe(2).ok());
  ASSERT_TRUE(subscriber->ended().has_value());
  EXPECT_TRUE(subscriber->ended()->ok());
  EXPECT_TRUE(Unsubscribe(2).ok()) << "idempotent";
  for (const uint64_t generation : {1, 2}) {
    auto late = NewSubscriber();
    const auto late_stream = Subscribe(late, generation);
    EXPECT_EQ(EndReason(late), registry::v1::ERROR_REASON_SUPERSEDED);
    EXPECT_THAT(late->events(), IsEmpty());
  }
  auto next = NewSubscriber();
  const auto next_stream = Subscribe(next, 3);
  EXPECT_FALSE(next->ended().has_value());
  EXPECT_EQ(ReasonOf(Unsubscribe(2)), registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_FALSE(next->ended().has_value()) << "a late Unsubscribe changes nothing";
}

TEST_F(NamedTest, UnsubscribeThatOvertakesItsSubscribeWins) {
  EXPECT_TRUE(Unsubscribe(2).ok());
  auto late = NewSubscriber();
  const auto stream = Subscribe(late, 1);
  EXPECT_EQ(EndReason(late), registry::v1::ERROR_REASON_SUPERSEDED);
}

TEST_F(NamedTest, TheSessionsEndEndsItsStreams) {
  auto subscriber = NewSubscriber();
  auto outside = NewSubscriber();
  const auto stream = Subscribe(subscriber, 1);
  const auto outside_stream = store_.Subscribe(outside, "orders");
  store_.clock().Advance(absl::Seconds(11));
  EXPECT_EQ(EndReason(subscriber), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_FALSE(outside->ended().has_value());
  auto late = NewSubscriber();
  const auto late_stream = Subscribe(late, 9);
  EXPECT_EQ(EndReason(late), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_TRUE(Unsubscribe(9).ok()) << "what went with the session is gone";
}

// Or memory would grow with each session that there ever was.
TEST(SubscriptionHub, TheNamesOfASessionGoWithIt) {
  const auto hub = SubscriptionHub::Create({}, /*epoch=*/7, /*revision=*/1);
  const auto nothing = [](const std::string&) { return SubscriptionHub::Present{{}, 1}; };
  SubscribeRequest request;
  request.set_session_id("a");
  request.set_subscription_id("s");
  request.mutable_selector()->set_service("orders");
  auto subscriber = NewSubscriber();
  SubscriptionHub::Deliveries deliveries;
  const auto stream = hub->Subscribe(request, 1, nothing, subscriber, &deliveries);
  EXPECT_THAT(hub->Sessions(), ElementsAre("a"));
  CommitResult commit;
  commit.revision = 2;
  commit.ended_sessions = {"a"};
  SubscriptionHub::Due due;
  hub->Publish(std::move(commit), nothing, &deliveries, &due);
  EXPECT_THAT(hub->Sessions(), IsEmpty());
  SubscriptionHub::Deliver(deliveries);
  EXPECT_TRUE(subscriber->ended().has_value());
}

// Names that only ever were ended are remembered up to a bound, whichever sessions they are in.
TEST(SubscriptionHub, NamesThatNeverBeganAreBoundedInAll) {
  SubscriptionHub::Options options;
  options.max_unknown_names = 3;
  const auto hub = SubscriptionHub::Create(options, /*epoch=*/7, /*revision=*/1);
  const auto nothing = [](const std::string&) { return SubscriptionHub::Present{{}, 1}; };
  SubscriptionHub::Deliveries deliveries;
  const auto unsubscribe = [&](const std::string& session, const std::string& id) {
    UnsubscribeRequest request;
    request.set_session_id(session);
    request.set_subscription_id(id);
    request.set_generation(2);
    EXPECT_EQ(hub->Unsubscribe(request, &deliveries), absl::OkStatus());
  };
  const auto begins = [&](const std::string& session, const std::string& id) {
    SubscribeRequest request;
    request.set_session_id(session);
    request.set_subscription_id(id);
    request.set_generation(1);
    request.mutable_selector()->set_service("orders");
    auto subscriber = NewSubscriber();
    const auto stream = hub->Subscribe(request, 1, nothing, subscriber, &deliveries);
    SubscriptionHub::Deliver(deliveries);
    return !subscriber->ended().has_value();
  };
  for (const char* id : {"1", "2"}) unsubscribe("a", id);
  for (const char* id : {"1", "2"}) unsubscribe("b", id);
  EXPECT_FALSE(begins("a", "1"));
  EXPECT_FALSE(begins("b", "1"));
  EXPECT_TRUE(begins("b", "2")) << "not remembered";
  CommitResult commit;
  commit.revision = 2;
  commit.ended_sessions = {"a"};
  SubscriptionHub::Due due;
  hub->Publish(std::move(commit), nothing, &deliveries, &due);
  unsubscribe("b", "3");
  EXPECT_FALSE(begins("b", "3")) << "there is room again";
}

TEST_F(NamedTest, NamesAreBounded) {
  StoreRegistry::Options options;
  options.subscriptions.max_names_per_session = 2;
  StoreHarness store(std::move(options));
  const std::string session = store.Session("a");
  std::vector<std::shared_ptr<FakeSubscriber>> subscribers;
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  for (const char* id : {"1", "2", "3"}) {
    SubscribeRequest request;
    request.set_session_id(session);
    request.set_subscription_id(id);
    request.mutable_selector()->set_service("orders");
    subscribers.push_back(NewSubscriber());
    streams.push_back(store->Subscribe(request, subscribers.back()));
  }
  EXPECT_FALSE(subscribers[1]->ended().has_value());
  EXPECT_EQ(EndReason(subscribers[2]), registry::v1::ERROR_REASON_LIMIT_REACHED);
}

}  // namespace
}  // namespace failback
