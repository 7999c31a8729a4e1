// Subscriptions of StoreRegistry under conditions.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/selector.h"
#include "registry/watch/filter_index.h"
#include "tests/registry/owned_subscriber.h"
#include "tests/registry/store/harness.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

std::shared_ptr<FakeSubscriber> NewSubscriber() { return std::make_shared<FakeSubscriber>(); }

constexpr registry::v1::HealthStatus kStatuses[] = {
    registry::v1::HEALTH_STATUS_UNSPECIFIED, registry::v1::HEALTH_STATUS_HEALTHY,
    registry::v1::HEALTH_STATUS_UNHEALTHY, registry::v1::HEALTH_STATUS_DRAINING};

class RandomOrders : public SeededRandom {
 public:
  std::string Letter() { return std::string(1, static_cast<char>('a' + Pick(3))); }
  ServiceInstance Instance() {
    ServiceInstance instance = MakeInstance("orders", std::to_string(Pick(8)), 1 + Pick(3));
    instance.set_zone(Letter());
    instance.set_status(kStatuses[Pick(4)]);
    for (int i = Pick(3); i > 0; --i) (*instance.mutable_metadata())[Letter()] = Letter();
    return instance;
  }
  Selector Filter() {
    Selector selector;
    selector.set_namespace_("default");
    selector.set_service("orders");
    for (int i = Pick(3); i > 0; --i) selector.add_zones(Letter());  // perhaps the same twice
    for (int i = Pick(3); i > 0; --i) selector.add_statuses(kStatuses[Pick(4)]);
    for (int i = Pick(3); i > 0; --i) (*selector.mutable_metadata())[Letter()] = Letter();
    return selector;
  }
};

TEST(FilterIndex, FindsAllThatMatch) {
  RandomOrders random;
  struct Follower {
    Selector selector;
    std::vector<std::string> conditions;
  };
  FilterIndex<Follower> index;
  std::vector<std::unique_ptr<Follower>> followers;
  for (int step = 0; step < 5000; ++step) {
    if (followers.size() > 20 || (!followers.empty() && random.Pick(3) == 0)) {
      std::swap(followers[random.Pick(static_cast<int>(followers.size()))], followers.back());
      index.Remove(followers.back()->selector, followers.back()->conditions,
                   followers.back().get());
      followers.pop_back();
    }
    auto follower = std::make_unique<Follower>();
    follower->selector = random.Filter();
    if (HasFilter(follower->selector)) {
      follower->conditions = index.Add(follower->selector, follower.get());
      followers.push_back(std::move(follower));
    }
    ASSERT_EQ(index.size(), followers.size());
    ServiceInstance instance = random.Instance();
    if (random.Pick(5) == 0) instance.mutable_offline()->set_reason("disk");
    std::vector<Follower*> found;
    index.ForEachCandidate(instance, [&](Follower* candidate) { found.push_back(candidate); });
    for (const auto& each : followers) {
      if (!SelectorMatches(each->selector, instance)) continue;
      ASSERT_THAT(found, ::testing::Contains(each.get())) << each->selector.ShortDebugString();
    }
  }
}

TEST(FilterIndex, LooksAtFewOfMany) {
  struct Follower {};
  FilterIndex<Follower> index;
  std::vector<Follower> followers(2000);
  for (int i = 0; i < 2000; ++i) {
    Selector selector;
    selector.add_zones("a");
    (*selector.mutable_metadata())["all"] = "same";
    (*selector.mutable_metadata())["shard"] = std::to_string(i);
    index.Add(selector, &followers[i]);
  }
  ServiceInstance instance;
  instance.set_zone("a");
  (*instance.mutable_metadata())["all"] = "same";
  (*instance.mutable_metadata())["shard"] = "77";
  int looked = 0;
  index.ForEachCandidate(instance, [&](Follower*) { ++looked; });
  EXPECT_LE(looked, 3) << "the one that matches, and those that came when there was no choice";
}

TEST(FilterIndex, ZonesTellApartWhatMetadataDoesNot) {
  struct Follower {};
  FilterIndex<Follower> index;
  std::vector<Follower> followers(2000);
  for (int i = 0; i < 2000; ++i) {
    Selector selector;
    selector.add_zones(std::to_string(i));
    (*selector.mutable_metadata())["all"] = "same";
    index.Add(selector, &followers[i]);
  }
  ServiceInstance instance;
  instance.set_zone("77");
  (*instance.mutable_metadata())["all"] = "same";
  int looked = 0;
  index.ForEachCandidate(instance, [&](Follower*) { ++looked; });
  EXPECT_LE(looked, 3);
}

// Each subscriber has what a fresh one gets.
TEST(Filters, AtRandomEachSeesWhatMatches) {
  RandomOrders random;
  StoreHarness store;
  struct Follower {
    SubscribeRequest request;
    std::shared_ptr<FakeSubscriber> subscriber = NewSubscriber();
    std::unique_ptr<SubscribeStream> stream;
  };
  std::vector<Follower> followers(30);
  for (Follower& follower : followers) {
    *follower.request.mutable_selector() = random.Filter();
    follower.stream = store->Subscribe(follower.request, follower.subscriber);
  }
  for (int step = 0; step < 500; ++step) {
    const ServiceInstance instance = random.Instance();
    if (random.Pick(4) == 0) {
      ASSERT_TRUE(store.Unregister("", instance.key()).ok());
    } else {
      ASSERT_TRUE(store.Register("", instance).ok());
    }
    Follower& any = followers[random.Pick(30)];
    auto fresh = NewSubscriber();
    const auto stream = store->Subscribe(any.request, fresh);
    ASSERT_EQ(any.subscriber->instances(), fresh->instances())
        << "step " << step << " " << any.request.ShortDebugString();
    if (random.Pick(10) == 0) {
      any = Follower();
      *any.request.mutable_selector() = random.Filter();
      any.stream = store->Subscribe(any.request, any.subscriber);
    }
  }
}

TEST(Filters, AreBoundedForEachService) {
  StoreRegistry::Options options;
  options.subscriptions.max_filters = 2;
  StoreHarness store(std::move(options));
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  const auto follow = [&](const std::string& service, const std::string& zone) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    if (!zone.empty()) request.mutable_selector()->add_zones(zone);
    auto subscriber = NewSubscriber();
    streams.push_back(store->Subscribe(request, subscriber));
    return subscriber->ended().value_or(absl::OkStatus());
  };
  EXPECT_EQ(follow("orders", "a"), absl::OkStatus());
  EXPECT_EQ(follow("orders", "b"), absl::OkStatus());
  const absl::Status refused = follow("orders", "c");
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_LIMIT_REACHED) << refused;
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("limits.max_filters_per_service"));
  EXPECT_EQ(follow("orders", "a"), absl::OkStatus()) << "one that is followed already";
  EXPECT_EQ(follow("orders", ""), absl::OkStatus());
  EXPECT_EQ(follow("users", "c"), absl::OkStatus());
  streams.erase(streams.begin() + 1);
  EXPECT_EQ(follow("orders", "c"), absl::OkStatus()) << "there is room again";
}

TEST(Filters, AnOwnerHasHalfOfThoseOfAService) {
  StoreRegistry::Options options;
  options.subscriptions.max_filters = 4;
  StoreHarness store(std::move(options));
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  const auto follow = [&](const std::string& owner, const std::string& zone) {
    SubscribeRequest request;
    request.mutable_selector()->set_service("orders");
    if (!zone.empty()) request.mutable_selector()->add_zones(zone);
    auto subscriber = NewSubscriber();
    streams.push_back(
        store->Subscribe(request, std::make_shared<OwnedSubscriber>(owner, subscriber)));
    return subscriber->ended().value_or(absl::OkStatus());
  };
  EXPECT_EQ(follow("mallory", "a"), absl::OkStatus());
  EXPECT_EQ(follow("mallory", "b"), absl::OkStatus());
  const absl::Status refused = follow("mallory", "c");
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_LIMIT_REACHED) << refused;
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("its share of limits.max_filters_per_service (4)"));
  EXPECT_EQ(follow("mallory", "a"), absl::OkStatus()) << "one that it follows";
  EXPECT_EQ(follow("mallory", ""), absl::OkStatus()) << "no filter";
  EXPECT_EQ(follow("alice", "c"), absl::OkStatus());
  EXPECT_EQ(follow("alice", "a"), absl::OkStatus()) << "another's";
  EXPECT_EQ(ReasonOf(follow("alice", "d")), registry::v1::ERROR_REASON_LIMIT_REACHED);
  // Each of one's streams under a filter has to go before there is room for another.
  streams[0].reset();
  EXPECT_EQ(ReasonOf(follow("mallory", "c")), registry::v1::ERROR_REASON_LIMIT_REACHED);
  streams[3].reset();
  EXPECT_EQ(follow("mallory", "c"), absl::OkStatus());
}

// Commits are published after they can be read: who begins in between has them in its snapshot, and
// is not told them again. (A subscriber checks that its messages follow from each other.)
TEST(Filters, WhoBeginsDuringCommitsSeesEachOnce) {
  StoreHarness store;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 3000; ++i) {
      ServiceInstance instance = MakeInstance("orders", std::to_string(i % 7), 1 + i % 5);
      instance.set_zone(i % 3 == 0 ? "a" : "b");
      EXPECT_TRUE(store.Register("", instance).ok());
    }
    done = true;
  });
  struct Follower {
    SubscribeRequest request;
    std::shared_ptr<FakeSubscriber> subscriber = NewSubscriber();
    std::unique_ptr<SubscribeStream> stream;
  };
  std::vector<Follower> followers;
  for (int i = 0; !done; ++i) {
    if (followers.size() < 40) followers.emplace_back();
    Follower& follower = followers[i % followers.size()];
    if (follower.stream != nullptr) {  // it goes on
      follower.stream.reset();
      follower.subscriber->BeginAgain();
      follower.request.set_epoch(follower.subscriber->epoch());
      follower.request.set_revision(follower.subscriber->revision());
    } else {
      follower.request.mutable_selector()->set_service("orders");
      if (i % 2 == 0) follower.request.mutable_selector()->add_zones("a");
    }
    follower.stream = store->Subscribe(follower.request, follower.subscriber);
  }
  writer.join();
  for (const Follower& follower : followers) {
    SubscribeRequest request;
    *request.mutable_selector() = follower.request.selector();
    const auto fresh = NewSubscriber();
    const auto stream = store->Subscribe(request, fresh);
    EXPECT_EQ(follower.subscriber->instances(), fresh->instances());
  }
}

}  // namespace
}  // namespace failback
