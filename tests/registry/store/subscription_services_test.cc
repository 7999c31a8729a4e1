// Subscriptions of StoreRegistry to the services of a namespace.

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

std::shared_ptr<FakeSubscriber> NewSubscriber() { return std::make_shared<FakeSubscriber>(); }

std::string Counts(const SubscribeResponse& event) {
  std::string text;
  const auto& entries =
      event.has_snapshot() ? event.snapshot().instances() : event.delta().upserts();
  for (const ServiceInstance& entry : entries) {
    EXPECT_TRUE(entry.key().instance_id().empty());
    text += entry.key().namespace_() + "/" + entry.key().service() + "=" +
            std::to_string(entry.instance_count()) + " ";
  }
  for (const InstanceKey& key : event.delta().removals()) text += "-" + key.service() + " ";
  return text;
}

TEST(Subscription, TheServicesOfANamespaceAreFollowedWithTheirCounts) {
  StoreHarness store;
  ServiceInstance elsewhere = MakeInstance("orders", "1");
  elsewhere.mutable_key()->set_namespace_("test");
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1")).ok());
  ASSERT_TRUE(store.Register("", elsewhere).ok());
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "");
  const auto last = [&] { return Counts(*subscriber->events().back()); };
  EXPECT_EQ(last(), "default/orders=1 ");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "2")).ok());
  EXPECT_EQ(last(), "default/orders=2 ");
  ASSERT_TRUE(store.Register("", MakeInstance("users", "1")).ok());
  EXPECT_EQ(last(), "default/users=1 ");
  EXPECT_THAT(subscriber->events(), SizeIs(3));
  // Not a change of the list.
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "2", 81)).ok());
  elsewhere.mutable_key()->set_instance_id("2");
  ASSERT_TRUE(store.Register("", elsewhere).ok());
  EXPECT_THAT(subscriber->events(), SizeIs(3));
  ASSERT_TRUE(store.CloseSession(session).ok());
  EXPECT_EQ(last(), "-orders ");

  // Goes on where it was, also when no stream was open in between.
  stream.reset();
  ASSERT_TRUE(store.Unregister("", MakeInstance("users", "1").key()).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("bills", "1")).ok());
  stream = store.Subscribe(subscriber, "", /*go_on=*/true);
  ASSERT_TRUE(subscriber->events()[0]->has_delta());
  EXPECT_EQ(last(), "default/bills=1 -users ");
}

TEST(Subscription, AListOfServicesThatNobodyFollowedIsToldAnew) {
  StoreHarness store;
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "");
  EXPECT_EQ(Counts(*subscriber->events().back()), "default/orders=1 ");
  stream.reset();
  ASSERT_TRUE(store.Register("", MakeInstance("users", "1")).ok());
  stream = store.Subscribe(subscriber, "", /*go_on=*/true);
  ASSERT_TRUE(subscriber->events()[0]->has_snapshot()) << "its changes were not kept";
  EXPECT_EQ(Counts(*subscriber->events().back()), "default/orders=1 default/users=1 ");
  stream.reset();

  // Another epoch, as after a restore.
  SubscribeRequest request;
  request.set_epoch(store->epoch() + 1);
  request.set_revision(store->revision());
  stream = store->Subscribe(request, subscriber);
  EXPECT_TRUE(subscriber->events().back()->has_snapshot());
}

TEST(Subscription, AServiceThatIsForgottenIsToldAnew) {
  constexpr int kServices = 10001;
  StoreHarness store;
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "orders");
  stream.reset();
  // With so many services, one that goes is not remembered.
  RegisterRequest request;
  for (int i = 0; i < kServices; ++i) {
    *request.add_registrations()->mutable_instance() =
        MakeInstance("service-" + std::to_string(i), "1");
    if (request.registrations_size() < 1000 && i + 1 < kServices) continue;
    ASSERT_TRUE(CallAndWait(*store, &Registry::Register, request).ok());
    request.clear_registrations();
  }
  ASSERT_TRUE(store.Unregister("", MakeInstance("orders", "1").key()).ok());
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  EXPECT_TRUE(subscriber->events()[0]->has_snapshot());
  EXPECT_THAT(subscriber->ids(), IsEmpty());
}

TEST(Subscription, AListOfServicesIsOfOneNamespaceAndHasNoConditions) {
  StoreHarness store;
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  SubscribeRequest request;
  request.mutable_selector()->set_namespace_("test");
  auto subscriber = NewSubscriber();
  auto stream = store->Subscribe(request, subscriber);
  EXPECT_EQ(Counts(*subscriber->events().back()), "");
  ServiceInstance instance = MakeInstance("orders", "1");
  instance.mutable_key()->set_namespace_("test");
  ASSERT_TRUE(store.Register("", instance).ok());
  EXPECT_EQ(Counts(*subscriber->events().back()), "test/orders=1 ");

  request.mutable_selector()->add_zones("a");
  auto refused = NewSubscriber();
  const auto none = store->Subscribe(request, refused);
  ASSERT_TRUE(refused->ended().has_value());
  EXPECT_EQ(ReasonOf(*refused->ended()), registry::v1::ERROR_REASON_INVALID_FIELD);
}

}  // namespace
}  // namespace failback
