// Subscriptions of StoreRegistry that go on after a break.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/harness.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::shared_ptr<FakeSubscriber> NewSubscriber() { return std::make_shared<FakeSubscriber>(); }

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

ServiceInstance Large(int id, const std::string& value) {
  ServiceInstance instance = MakeInstance("orders", std::to_string(id));
  for (int i = 0; i < 10; ++i) {
    (*instance.mutable_metadata())["key" + std::to_string(i)] = value + std::string(1000, 'x');
  }
  return instance;
}

void RegisterLarge(StoreHarness& store, int from, int to, const std::string& value) {
  RegisterRequest request;
  for (int i = from; i < to; ++i) {
    *request.add_registrations()->mutable_instance() = Large(i, value);
  }
  ASSERT_TRUE(CallAndWait(*store, &Registry::Register, request).ok());
}

size_t LongestMessage(const FakeSubscriber& subscriber) {
  size_t longest = 0;
  for (const auto& event : subscriber.events()) longest = std::max(longest, event->ByteSizeLong());
  return longest;
}

TEST(Subscription, MuchThatWasMissedIsASnapshotInParts) {
  StoreHarness store;
  for (int i = 0; i < 600; i += 100) RegisterLarge(store, i, i + 100, "a");
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "orders");
  stream.reset();
  // 2 MB of a set of 6.
  for (int i = 0; i < 200; i += 10) RegisterLarge(store, i, i + 10, "b");
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  EXPECT_TRUE(subscriber->events()[0]->has_snapshot());
  EXPECT_LT(LongestMessage(*subscriber), size_t{512} << 10);
  auto fresh = NewSubscriber();
  const auto control = store.Subscribe(fresh, "orders");
  EXPECT_EQ(subscriber->instances(), fresh->instances());

  // Many changes of one instance are one.
  stream.reset();
  for (int i = 0; i < 200; ++i) RegisterLarge(store, 7, 8, std::to_string(i));
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  ASSERT_THAT(subscriber->events(), SizeIs(1));
  EXPECT_EQ(subscriber->events()[0]->delta().upserts_size(), 1);
}

TEST(Subscription, MuchThatOneCommitChangesIsASnapshotInPartsHoweverLargeTheSet) {
  StoreHarness store;
  for (int i = 0; i < 2000; i += 100) RegisterLarge(store, i, i + 100, "a");
  auto subscriber = NewSubscriber();
  const auto stream = store.Subscribe(subscriber, "orders");
  subscriber->BeginAgain();
  RegisterLarge(store, 0, 50, "b");
  ASSERT_THAT(subscriber->events(), SizeIs(1));
  EXPECT_TRUE(subscriber->events()[0]->has_delta()) << "half a megabyte is told as it is";
  subscriber->BeginAgain();
  RegisterLarge(store, 0, 200, "c");
  EXPECT_TRUE(subscriber->events()[0]->has_snapshot());
  EXPECT_LT(LongestMessage(*subscriber), size_t{512} << 10);
}

TEST(Subscription, MuchThatWasMissedIsASnapshotInPartsHoweverLargeTheSet) {
  StoreHarness store;
  for (int i = 0; i < 2000; i += 100) RegisterLarge(store, i, i + 100, "a");
  auto subscriber = NewSubscriber();
  auto stream = store.Subscribe(subscriber, "orders");
  stream.reset();
  RegisterLarge(store, 0, 50, "b");
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  EXPECT_TRUE(subscriber->events()[0]->has_delta()) << "half a megabyte is told as it is";
  stream.reset();
  for (int i = 0; i < 200; i += 10) RegisterLarge(store, i, i + 10, "c");
  stream = store.Subscribe(subscriber, "orders", /*go_on=*/true);
  EXPECT_TRUE(subscriber->events()[0]->has_snapshot());
  EXPECT_LT(LongestMessage(*subscriber), size_t{512} << 10);
}

// Random changes, breaks and resumptions: a subscriber that resumes has exactly what a fresh
// subscriber has. How many went on with a delta is returned.
int GoOnAtRandom(size_t max_delta_bytes) {
  SeededRandom random;
  const auto pick = [&](int n) { return random.Pick(n); };
  StoreRegistry::Options options;
  options.subscriptions.min_log = 8;
  options.subscriptions.max_log = 16;
  options.subscriptions.delta.bytes = max_delta_bytes;
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
      EXPECT_TRUE(store.Unregister("", instance.key()).ok());
    } else {
      EXPECT_TRUE(store.Register("", instance).ok());
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
      EXPECT_EQ(any.subscriber->instances(), control->instances()) << "step " << step;
      if (testing::Test::HasFailure()) return 0;
    }
  }
  return resumed;
}

TEST(Subscription, GoingOnAtRandomIsLosslessWithEveryFilter) {
  EXPECT_GT(GoOnAtRandom(size_t{256} << 10), 50);
}

// Where a change or two of a small set are sent as a snapshot already.
TEST(Subscription, GoingOnAtRandomIsLosslessAmongSnapshots) { EXPECT_GT(GoOnAtRandom(40), 0); }

}  // namespace
}  // namespace failback
