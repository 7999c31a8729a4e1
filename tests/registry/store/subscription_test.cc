// Subscriptions of StoreRegistry: snapshots, deltas, resuming, names, and the listener's contract.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/lazy_snapshot.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::shared_ptr<FakeSubscriber> NewSubscriber() { return std::make_shared<FakeSubscriber>(); }

TEST(Subscription, EmptySnapshotFirst) {
  StoreHarness store;
  auto subscriber = NewSubscriber();
  const auto stream = store.Subscribe(subscriber, "orders");
  ASSERT_THAT(subscriber->events(), SizeIs(1));
  EXPECT_TRUE(subscriber->events()[0]->has_snapshot());
  EXPECT_EQ(subscriber->events()[0]->snapshot().instances_size(), 0);
  EXPECT_EQ(subscriber->epoch(), store->epoch());
  EXPECT_EQ(subscriber->revision(), 0u);
}

TEST(Subscription, DeltasAreChainedByBaseRevision) {
  StoreHarness store;
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  auto subscriber = NewSubscriber();
  const auto stream = store.Subscribe(subscriber, "orders");
  ASSERT_TRUE(store.Register("", MakeInstance("payments", "1")).ok());  // not followed
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1", 81)).ok());
  ASSERT_TRUE(store.Unregister("", MakeInstance("orders", "2").key()).ok());
  const auto events = subscriber->events();
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[0]->revision(), 1u);
  EXPECT_EQ(events[1]->delta().base_revision(), 1u);
  EXPECT_EQ(events[1]->revision(), 3u);
  EXPECT_EQ(events[2]->delta().base_revision(), 3u);
  EXPECT_EQ(events[2]->delta().upserts(0).port(), 81u);
  EXPECT_EQ(events[3]->delta().removals(0).instance_id(), "2");
  EXPECT_THAT(subscriber->ids(), ElementsAre("1"));
}

TEST(Subscription, WhatIsNotSeenIsNotTold) {
  StoreHarness store;
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1"), 1).ok());
  auto subscriber = NewSubscriber();
  const auto stream = store.Subscribe(subscriber, "orders");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1"), 2).ok());  // same payload
  ASSERT_TRUE(store.Unregister(session, MakeInstance("orders", "9").key(), 3).ok());
  EXPECT_EQ(store->revision(), 3u);
  EXPECT_THAT(subscriber->events(), SizeIs(1));
}

TEST(Subscription, MessagesAreSharedByThoseWhoFollowTheSame) {
  StoreHarness store;
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  std::vector<std::shared_ptr<FakeSubscriber>> subscribers;
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  for (int i = 0; i < 3; ++i) {
    subscribers.push_back(NewSubscriber());
    streams.push_back(store.Subscribe(subscribers.back(), "orders"));
    // Moves the revision on without changing what they see.
    ASSERT_TRUE(store.Register("", MakeInstance("other", std::to_string(i))).ok());
  }
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "3")).ok());
  for (const auto& subscriber : subscribers) {
    ASSERT_THAT(subscriber->events(), SizeIs(3));
    EXPECT_THAT(subscriber->ids(), ElementsAre("1", "2", "3"));
    EXPECT_EQ(subscriber->events()[2], subscribers[0]->events()[2]);
  }
}

// Keeps the snapshot that it is told, as it is.
class SnapshotKeeper final : public NotifyListener {
 public:
  void OnNotify(const std::shared_ptr<const SubscribeResponse>& event) override { ++deltas; }
  bool OnSnapshot(const std::shared_ptr<const LazySnapshot>& told) override {
    snapshot = told;
    return true;
  }
  void OnEnd(const absl::Status&) override {}

  std::shared_ptr<const LazySnapshot> snapshot;
  int deltas = 0;
};

TEST(Subscription, ASnapshotIsSharedAsLongAsItIsKeptAndTrue) {
  StoreHarness store;
  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  const auto subscribe = [&] {
    auto keeper = std::make_shared<SnapshotKeeper>();
    streams.push_back(store->Subscribe(request, keeper));
    return keeper;
  };
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  const auto first = subscribe();
  ASSERT_TRUE(store.Register("", MakeInstance("other", "1")).ok());
  const auto second = subscribe();
  EXPECT_EQ(first->snapshot, second->snapshot);
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  const auto third = subscribe();
  EXPECT_NE(first->snapshot, third->snapshot);
  EXPECT_EQ(first->snapshot->instances(), 1u);
  EXPECT_EQ(third->snapshot->instances(), 2u);
  EXPECT_EQ(first->deltas, 1);
  EXPECT_EQ(third->deltas, 0);
  // Nobody keeps it: it is made anew.
  const uint64_t revision = third->snapshot->revision();
  ASSERT_TRUE(store.Register("", MakeInstance("other", "2")).ok());
  third->snapshot.reset();
  EXPECT_GT(subscribe()->snapshot->revision(), revision);
}

TEST(Subscription, FiltersByStateZoneAndMetadata) {
  StoreHarness store;
  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  request.mutable_selector()->add_zones("a");
  request.mutable_selector()->add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  (*request.mutable_selector()->mutable_metadata())["tier"] = "gold";
  auto subscriber = NewSubscriber();
  const auto stream = store->Subscribe(request, subscriber);

  ServiceInstance one = MakeInstance("orders", "1");
  one.set_zone("a");
  (*one.mutable_metadata())["tier"] = "gold";
  ServiceInstance other = one;
  other.mutable_key()->set_instance_id("2");
  other.set_zone("b");
  ASSERT_TRUE(store.Register("", one).ok());
  ASSERT_TRUE(store.Register("", other).ok());
  EXPECT_THAT(subscriber->ids(), ElementsAre("1"));
  EXPECT_THAT(subscriber->events(), SizeIs(2)) << "the other is not seen";

  one.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  ASSERT_TRUE(store.Register("", one).ok());
  EXPECT_THAT(subscriber->ids(), IsEmpty());
  EXPECT_EQ(subscriber->events().back()->delta().removals_size(), 1);
  one.set_weight(1);
  ASSERT_TRUE(store.Register("", one).ok());
  EXPECT_THAT(subscriber->events(), SizeIs(3)) << "changes out of sight are not told";
  one.set_status(registry::v1::HEALTH_STATUS_HEALTHY);
  ASSERT_TRUE(store.Register("", one).ok());
  EXPECT_THAT(subscriber->ids(), ElementsAre("1"));
  (*one.mutable_metadata())["tier"] = "silver";
  ASSERT_TRUE(store.Register("", one).ok());
  EXPECT_THAT(subscriber->ids(), IsEmpty());
  ASSERT_TRUE(store.Unregister("", one.key()).ok());
  EXPECT_THAT(subscriber->events(), SizeIs(5));
}

TEST(Subscription, LargeSnapshotComesInParts) {
  StoreRegistry::Options options;
  options.subscriptions.snapshot_part_instances = 10;
  StoreHarness store(std::move(options));
  for (int i = 0; i < 25; ++i) {
    ASSERT_TRUE(store.Register("", MakeInstance("orders", std::to_string(i))).ok());
  }
  auto subscriber = NewSubscriber();
  const auto stream = store.Subscribe(subscriber, "orders");
  const auto events = subscriber->events();
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[0]->snapshot().instances_size(), 10);
  EXPECT_TRUE(events[0]->snapshot().more());
  EXPECT_TRUE(events[1]->snapshot().more());
  EXPECT_EQ(events[2]->snapshot().instances_size(), 5);
  EXPECT_FALSE(events[2]->snapshot().more());
  EXPECT_THAT(subscriber->ids(), SizeIs(25));
}

TEST(Subscription, PartsAreBoundedInBytesToo) {
  StoreRegistry::Options options;
  options.subscriptions.snapshot_part_bytes = 3000;
  StoreHarness store(std::move(options));
  for (int i = 0; i < 10; ++i) {
    ServiceInstance instance = MakeInstance("orders", std::to_string(i));
    (*instance.mutable_metadata())["k"] = std::string(1000, 'v');
    ASSERT_TRUE(store.Register("", instance).ok());
  }
  auto subscriber = NewSubscriber();
  const auto stream = store.Subscribe(subscriber, "orders");
  EXPECT_THAT(subscriber->events(), SizeIs(5));
  for (const auto& event : subscriber->events()) EXPECT_LT(event->ByteSizeLong(), 3100u);
}

// What changes most of a set is told as a snapshot, which has parts, once for all of a group.
TEST(Subscription, AMassChangeIsASnapshot) {
  StoreRegistry::Options options;
  options.subscriptions.max_delta_bytes = 1000;
  StoreHarness store(std::move(options));
  std::vector<ServiceInstance> fleet;
  for (int i = 0; i < 90; ++i) fleet.push_back(MakeInstance("orders", std::to_string(100 + i)));
  ASSERT_TRUE(store.Register("", fleet[0]).ok());
  auto first = NewSubscriber();
  const auto first_stream = store.Subscribe(first, "orders");
  ASSERT_TRUE(store.Register("", MakeInstance("other", "1")).ok());
  auto second = NewSubscriber();  // from another base
  const auto second_stream = store.Subscribe(second, "orders");
  SubscribeRequest filtered;
  filtered.mutable_selector()->set_service("orders");
  filtered.mutable_selector()->add_zones("b");
  auto third = NewSubscriber();
  const auto third_stream = store->Subscribe(filtered, third);
  auto services = NewSubscriber();
  const auto services_stream = store.Subscribe(services, "");

  fleet[7].set_zone("b");
  RegisterRequest request;
  for (const ServiceInstance& instance : fleet) {
    *request.add_registrations()->mutable_instance() = instance;
  }
  ASSERT_TRUE(CallAndWait(*store.operator->(), &Registry::Register, request).ok());
  for (const auto& subscriber : {first, second}) {
    ASSERT_THAT(subscriber->events(), SizeIs(2));
    EXPECT_TRUE(subscriber->events()[1]->has_snapshot());
    EXPECT_EQ(subscriber->events()[1]->revision(), store->revision());
    EXPECT_THAT(subscriber->ids(), SizeIs(90));
  }
  EXPECT_THAT(third->ids(), ElementsAre("107"));
  ASSERT_THAT(third->events(), SizeIs(2));
  EXPECT_TRUE(third->events()[1]->has_delta()) << "what it sees of it is little";
  ASSERT_THAT(services->events(), SizeIs(2));
  EXPECT_TRUE(services->events()[1]->has_delta());

  // A change that is long by itself, but little of the set, and one that is short: deltas, from
  // where the snapshot was.
  UnregisterRequest some;
  for (int i = 0; i < 17; ++i) *some.add_deregistrations()->mutable_key() = fleet[i].key();
  ASSERT_TRUE(CallAndWait(*store.operator->(), &Registry::Unregister, some).ok());
  ASSERT_TRUE(store.Unregister("", fleet[20].key()).ok());
  for (const auto& subscriber : {first, second}) {
    ASSERT_THAT(subscriber->events(), SizeIs(4));
    EXPECT_EQ(subscriber->events()[2]->delta().removals_size(), 17);
    EXPECT_TRUE(subscriber->events()[3]->has_delta());
    EXPECT_THAT(subscriber->ids(), SizeIs(72));
  }
  EXPECT_THAT(third->ids(), IsEmpty());
  // All that is left goes at once.
  UnregisterRequest rest;
  for (int i = 17; i < 90; ++i) *rest.add_deregistrations()->mutable_key() = fleet[i].key();
  ASSERT_TRUE(CallAndWait(*store.operator->(), &Registry::Unregister, rest).ok());
  ASSERT_THAT(second->events(), SizeIs(5));
  EXPECT_TRUE(second->events()[4]->has_snapshot());
  EXPECT_THAT(second->ids(), IsEmpty());
}

// ---- Going on after a break.

TEST(Subscription, GoesOnWithOneDelta) {
  StoreHarness store;
  for (const char* id : {"1", "2"})
    ASSERT_TRUE(store.Register("", MakeInstance("orders", id)).ok());
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "orders");
  stream.reset();
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1", 81)).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1", 82)).ok());
  ASSERT_TRUE(store.Unregister("", MakeInstance("orders", "2").key()).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "3")).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "4")).ok());
  ASSERT_TRUE(store.Unregister("", MakeInstance("orders", "4").key()).ok());
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  ASSERT_THAT(subscriber->events(), SizeIs(1));
  const auto& event = *subscriber->events()[0];
  ASSERT_TRUE(event.has_delta());
  EXPECT_EQ(event.delta().base_revision(), 2u);
  EXPECT_EQ(event.revision(), store->revision());
  EXPECT_EQ(event.delta().upserts_size(), 2) << "the newest state of each";
  EXPECT_EQ(event.delta().removals_size(), 1) << "what came and went is not told";
  EXPECT_THAT(subscriber->ids(), ElementsAre("1", "3"));
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "5")).ok());
  EXPECT_THAT(subscriber->ids(), ElementsAre("1", "3", "5"));
}

TEST(Subscription, GoingOnWithNothingNewIsAnEmptyDelta) {
  StoreHarness store;
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "orders");
  stream.reset();
  ASSERT_TRUE(store.Register("", MakeInstance("payments", "1")).ok());
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  ASSERT_THAT(subscriber->events(), SizeIs(1));
  EXPECT_TRUE(subscriber->events()[0]->has_delta());
  EXPECT_EQ(subscriber->events()[0]->delta().upserts_size(), 0);
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  EXPECT_THAT(subscriber->ids(), ElementsAre("1", "2"));
}

TEST(Subscription, GapsOtherEpochsAndFutureRevisionsGetASnapshot) {
  StoreRegistry::Options options;
  options.subscriptions.min_log = 4;
  options.subscriptions.max_log = 4;
  StoreHarness store(std::move(options));
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "orders");
  stream.reset();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store.Register("", MakeInstance("orders", "1", 100 + i)).ok());
  }
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  EXPECT_TRUE(subscriber->events()[0]->has_snapshot()) << "the changes are no longer known";
  EXPECT_THAT(subscriber->ids(), ElementsAre("1"));

  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  request.set_epoch(store->epoch() + 1);
  request.set_revision(store->revision());
  auto other_epoch = NewSubscriber();
  const auto other_stream = store->Subscribe(request, other_epoch);
  EXPECT_TRUE(other_epoch->events()[0]->has_snapshot());
  request.set_epoch(store->epoch());
  request.set_revision(store->revision() + 1);
  auto future = NewSubscriber();
  const auto future_stream = store->Subscribe(request, future);
  EXPECT_TRUE(future->events()[0]->has_snapshot());
}

TEST(Subscription, ALargeCommitIsNotKeptForThoseWhoComeBack) {
  StoreRegistry::Options options;
  options.subscriptions.max_log = 8;
  options.subscriptions.min_log = 8;
  StoreHarness store(std::move(options));
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "orders");
  stream.reset();
  RegisterRequest request;
  for (int i = 0; i < 100; ++i) {
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", std::to_string(i));
  }
  ASSERT_TRUE(CallAndWait(*store, &Registry::Register, request).ok());
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  EXPECT_TRUE(subscriber->events()[0]->has_snapshot());
  EXPECT_THAT(subscriber->ids(), SizeIs(100));
}

// Random changes, breaks and resumptions: whoever goes on has exactly what a fresh subscriber has.
TEST(Subscription, GoingOnAtRandomIsLosslessWithEveryFilter) {
  uint64_t seed = std::random_device()();
  if (const char* given = std::getenv("FAILBACK_TEST_SEED"); given != nullptr) {
    seed = std::strtoull(given, nullptr, 10);
  }
  SCOPED_TRACE("replay with FAILBACK_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  StoreRegistry::Options options;
  options.subscriptions.min_log = 8;
  options.subscriptions.max_log = 16;
  options.subscriptions.max_delta_bytes = 50;  // a removal from a small set is told as a snapshot
  StoreHarness store(std::move(options));

  struct Follower {
    SubscribeRequest request;
    std::shared_ptr<FakeSubscriber> subscriber = NewSubscriber();
    std::unique_ptr<SubscribeStream> stream;
  };
  std::vector<Follower> followers(8);
  for (int i = 0; i < 8; ++i) {
    if (i % 4 == 3) continue;  // follows the list of services
    followers[i].request.mutable_selector()->set_service("orders");
    if (i % 2 == 1) followers[i].request.mutable_selector()->add_zones("a");
  }
  int resumed = 0;
  for (int step = 0; step < 2000; ++step) {
    const char* const service = pick(3) == 0 ? "users" : "orders";
    ServiceInstance instance = MakeInstance(service, std::to_string(pick(6)), 1 + pick(3));
    instance.set_zone(pick(2) == 0 ? "a" : "b");
    if (pick(3) == 0) {
      ASSERT_TRUE(store.Unregister("", instance.key()).ok());
    } else {
      ASSERT_TRUE(store.Register("", instance).ok());
    }
    Follower& follower = followers[pick(8)];
    if (pick(3) == 0) {
      follower.stream.reset();
    } else if (follower.stream == nullptr) {
      follower.request.set_epoch(follower.subscriber->epoch());
      follower.request.set_revision(follower.subscriber->revision());
      follower.subscriber->BeginAgain();
      follower.stream = store->Subscribe(follower.request, follower.subscriber);
      resumed += follower.subscriber->events()[0]->has_delta();
    }
    for (const Follower& any : followers) {
      if (any.stream == nullptr) continue;
      SubscribeRequest fresh = any.request;
      fresh.clear_epoch();
      fresh.clear_revision();
      auto control = NewSubscriber();
      const auto stream = store->Subscribe(fresh, control);
      ASSERT_EQ(any.subscriber->instances(), control->instances()) << "step " << step;
    }
  }
  EXPECT_GT(resumed, 50);
}

// ---- The services of a namespace.

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

  // Goes on where it was, also when nobody listened in between.
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

// ---- Names in a session.

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

// ---- The listener's contract.

TEST(Subscription, NothingIsHeardAfterTheStreamIsDestroyed) {
  StoreHarness store;
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "orders");
  stream.reset();
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  EXPECT_THAT(subscriber->events(), SizeIs(1));
  EXPECT_FALSE(subscriber->ended().has_value());
  EXPECT_EQ(store->Stats().subscribers, 0);
}

TEST(Subscription, DestroyingAStreamInsideItsOwnCallbackMakesThatCallTheLast) {
  StoreHarness store;
  class Leaver : public FakeSubscriber {
   public:
    void OnNotify(const std::shared_ptr<const SubscribeResponse>& event) override {
      FakeSubscriber::OnNotify(event);
      stream.reset();
    }
    std::unique_ptr<SubscribeStream> stream;
  };
  auto subscriber = std::make_shared<Leaver>();
  subscriber->stream = store.Subscribe(subscriber, "orders");
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  EXPECT_THAT(subscriber->events(), SizeIs(2));
  EXPECT_EQ(subscriber->stream, nullptr);
}

// Writers, subscribers that come and go, and session ends, on real threads: the streams' rules are
// checked by every FakeSubscriber, and at the end all have the same.
TEST(Subscription, ManyThreadsKeepEveryStreamInOrder) {
  HashedWheelTimer::Options timer_options;
  auto timer = HashedWheelTimer::Create(timer_options).value();
  StoreRegistry::Options options;
  options.timer = timer.get();
  options.subscriptions.max_delta_bytes = 50;
  auto registry = StoreRegistry::Open(options).value();

  constexpr int kWriters = 3;
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      std::mt19937 random(w);
      for (int i = 0; i < 600; ++i) {
        const ServiceInstance instance =
            MakeInstance("orders", std::to_string(random() % 10), 1 + random() % 60000);
        if (random() % 4 == 0) {
          UnregisterRequest request;
          *request.add_deregistrations()->mutable_key() = instance.key();
          EXPECT_TRUE(CallAndWait(*registry, &Registry::Unregister, request).ok());
        } else {
          RegisterRequest request;
          *request.add_registrations()->mutable_instance() = instance;
          EXPECT_TRUE(CallAndWait(*registry, &Registry::Register, request).ok());
        }
      }
    });
  }
  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  auto steady = NewSubscriber();
  auto steady_stream = registry->Subscribe(request, steady);
  threads.emplace_back([&] {
    auto subscriber = NewSubscriber();
    while (!stop) {
      SubscribeRequest again = request;
      again.set_epoch(subscriber->epoch());
      again.set_revision(subscriber->revision());
      subscriber->BeginAgain();
      auto stream = registry->Subscribe(again, subscriber);
      std::this_thread::yield();
    }
  });
  for (int w = 0; w < kWriters; ++w) threads[w].join();
  stop = true;
  threads.back().join();
  auto control = NewSubscriber();
  const auto control_stream = registry->Subscribe(request, control);
  EXPECT_EQ(steady->instances(), control->instances());
  EXPECT_EQ(registry->CheckInvariants(), absl::OkStatus());
  steady_stream.reset();
}

}  // namespace
}  // namespace failback
