// Subscriptions of StoreRegistry: snapshots, deltas, and the listener's contract.

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/harness.h"
#include "tests/util/timers.h"

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

TEST(Subscription, EventsAreSharedByThoseWhoFollowTheSame) {
  StoreHarness store;
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "1")).ok());
  // Keeps the events themselves too.
  struct Keeper : FakeSubscriber {
    void OnEvent(const EventPtr& event) override {
      kept.push_back(event);
      FakeSubscriber::OnEvent(event);
    }
    std::vector<EventPtr> kept;
  };
  std::vector<std::shared_ptr<Keeper>> subscribers;
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  for (int i = 0; i < 3; ++i) {
    subscribers.push_back(std::make_shared<Keeper>());
    streams.push_back(store.Subscribe(subscribers.back(), "orders"));
    // Moves the revision on without changing what they see.
    ASSERT_TRUE(store.Register("", MakeInstance("other", std::to_string(i))).ok());
  }
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "2")).ok());
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "3")).ok());
  for (const auto& subscriber : subscribers) {
    ASSERT_THAT(subscriber->events(), SizeIs(3));
    EXPECT_THAT(subscriber->ids(), ElementsAre("1", "2", "3"));
    EXPECT_EQ(subscriber->kept[2], subscribers[0]->kept[2]);
  }
}

// Keeps the snapshot that it receives, as it is.
class SnapshotKeeper final : public NotifyListener {
 public:
  void OnEvent(const EventPtr& event) override {
    if (event->is_snapshot()) {
      snapshot = event;
    } else {
      ++deltas;
    }
  }
  void OnEnd(const absl::Status&) override {}

  EventPtr snapshot;
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
  // Nobody keeps it: it is made again.
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

// What changes most of a set is sent as a snapshot, which has parts, once for all of a group.
TEST(Subscription, AMassChangeIsASnapshot) {
  StoreRegistry::Options options;
  options.subscriptions.delta.bytes = 1000;
  StoreHarness store(std::move(options));
  std::vector<ServiceInstance> fleet;
  fleet.reserve(90);
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

// ---- The listener's contract.

TEST(Subscription, NothingIsReceivedAfterTheStreamIsDestroyed) {
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
    void OnMessage(const MessagePtr& event) override {
      FakeSubscriber::OnMessage(event);
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
  auto timer = NewTimer();
  StoreRegistry::Options options;
  options.timer = timer.get();
  options.subscriptions.delta.bytes = 50;
  auto registry = StoreRegistry::Open(options).value();

  constexpr int kWriters = 3;
  std::vector<std::thread> threads;
  threads.reserve(kWriters);
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
