#include "gateway/xds/service_cache.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "failback/xds/discovery.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/simulated_clock.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback::xds {
namespace {

using envoy::config::endpoint::v3::ClusterLoadAssignment;
using envoy::service::discovery::v3::DiscoveryResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RecordingFollower : public ServiceCache::Follower {
 public:
  void OnServiceChanged(const std::string& name) override { told.push_back(name); }
  std::vector<std::string> told;
};

ServiceInstance Instance(const std::string& id, const std::string& zone = "") {
  ServiceInstance instance = MakeInstance(id, 80);
  instance.set_address("10.0.0." + id);
  instance.set_zone(zone);
  return instance;
}

SubscribeResponse Snapshot(const std::vector<ServiceInstance>& instances, bool more = false) {
  SubscribeResponse event;
  event.set_epoch(1);
  for (const auto& instance : instances) *event.mutable_snapshot()->add_instances() = instance;
  event.mutable_snapshot()->set_more(more);
  return event;
}

SubscribeResponse Delta(const std::vector<ServiceInstance>& upserts,
                        const std::vector<std::string>& removals) {
  SubscribeResponse event;
  event.set_epoch(1);
  event.mutable_delta();
  for (const auto& instance : upserts) *event.mutable_delta()->add_upserts() = instance;
  for (const auto& id : removals) *event.mutable_delta()->add_removals() = Instance(id).key();
  return event;
}

// Everything on one thread and simulated time.
class ServiceCacheTest : public ::testing::Test {
 protected:
  ServiceCacheTest() {
    timer_ = NewTimer(&clock_, absl::Milliseconds(10));
    options_.timer = timer_.get();
    cache_ = std::make_unique<ServiceCache>(&registry_, options_);
  }

  std::shared_ptr<RecordingFollower> Follow(const std::string& name = "orders") {
    auto follower = std::make_shared<RecordingFollower>();
    EXPECT_TRUE(cache_->Follow(name, follower).ok());
    return follower;
  }

  std::shared_ptr<FakeSubscription> Subscription(size_t index = 0) {
    return registry_.WaitForSubscription(index, absl::ZeroDuration());
  }

  StreamState::Found Find(const std::string& name = "orders", const std::string& zone = "") {
    return cache_->Find(ResourceType::kEndpoints, name, zone);
  }

  // The addresses that clients get, of each locality; "?" when nothing is known.
  std::string Addresses(const std::string& name = "orders", const std::string& zone = "") {
    const StreamState::Found found = Find(name, zone);
    if (found.resource == nullptr) return "?";
    DiscoveryResponse response;
    EXPECT_TRUE(response.ParseFromString(found.resource->encoded));
    EXPECT_EQ(response.resources_size(), 1);
    ClusterLoadAssignment assignment;
    EXPECT_TRUE(response.resources(0).UnpackTo(&assignment));
    EXPECT_EQ(assignment.cluster_name(), name);
    std::string text = found.placeholder ? "placeholder" : "";
    for (const auto& locality : assignment.endpoints()) {
      absl::StrAppend(&text, "[");
      for (const auto& endpoint : locality.lb_endpoints()) {
        absl::StrAppend(&text, endpoint.endpoint().address().socket_address().address());
      }
      absl::StrAppend(&text, "]");
    }
    return text;
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FakeRegistry registry_;
  ServiceCache::Options options_;
  std::unique_ptr<ServiceCache> cache_;
};

TEST_F(ServiceCacheTest, OneSubscriptionHoweverManyFollow) {
  const auto first = Follow();
  const auto second = Follow();
  ASSERT_EQ(registry_.subscriptions().size(), 1u);
  EXPECT_EQ(Subscription()->request().selector().service(), "orders");
  EXPECT_EQ(Subscription()->request().selector().namespace_(), "default");
  Subscription()->Push(Snapshot({Instance("1")}));
  EXPECT_THAT(first->told, ElementsAre("orders"));
  EXPECT_THAT(second->told, ElementsAre("orders"));
  EXPECT_EQ(Find().resource, Find().resource) << "encoded once";
  EXPECT_EQ(cache_->Stats().builds, 1);
}

TEST_F(ServiceCacheTest, ListenersRoutesAndClustersAreThereAtOnceAndNeverChange) {
  Follow();
  for (const ResourceType type :
       {ResourceType::kListener, ResourceType::kRoute, ResourceType::kCluster}) {
    const ResourcePtr before = cache_->Find(type, "orders", "").resource;
    ASSERT_NE(before, nullptr);
    Subscription()->Push(Snapshot({Instance("1")}));
    EXPECT_EQ(cache_->Find(type, "orders", "").resource, before);
  }
  EXPECT_EQ(cache_->Find(ResourceType::kListener, "payments", "").resource, nullptr);
}

TEST_F(ServiceCacheTest, EndpointsFollowTheSubscription) {
  const auto follower = Follow();
  EXPECT_EQ(Addresses(), "?");
  Subscription()->Push(Snapshot({Instance("1"), Instance("2")}));
  EXPECT_EQ(Addresses(), "[10.0.0.110.0.0.2]");
  Subscription()->Push(Delta({Instance("3")}, {"1"}));
  EXPECT_EQ(Addresses(), "[10.0.0.210.0.0.3]");
  Subscription()->Push(Delta({}, {"2", "3"}));
  EXPECT_EQ(Addresses(), "");
  EXPECT_EQ(follower->told.size(), 3u);
}

TEST_F(ServiceCacheTest, AnEmptyFirstSetIsKnown) {
  const auto follower = Follow();
  Subscription()->Push(Snapshot({}));
  EXPECT_THAT(follower->told, ElementsAre("orders"));
  EXPECT_EQ(Addresses(), "");
  EXPECT_FALSE(Find().placeholder);
}

TEST_F(ServiceCacheTest, PartsOfASnapshotAreOne) {
  const auto follower = Follow();
  Subscription()->Push(Snapshot({Instance("1")}));
  Subscription()->Push(Snapshot({Instance("2")}, /*more=*/true));
  EXPECT_EQ(Addresses(), "[10.0.0.1]");
  Subscription()->Push(Snapshot({Instance("3")}));
  EXPECT_EQ(Addresses(), "[10.0.0.210.0.0.3]");
  EXPECT_EQ(follower->told.size(), 2u);
}

TEST_F(ServiceCacheTest, WhatClientsAreNotToldIsNoChange) {
  const auto follower = Follow();
  Subscription()->Push(Snapshot({Instance("1")}));
  const ResourcePtr before = Find().resource;
  ServiceInstance same = Instance("1");
  (*same.mutable_metadata())["version"] = "2";
  Subscription()->Push(Delta({same}, {}));
  // The same set again, after an outage; marked stale, during one.
  Subscription()->Push(Snapshot({Instance("1")}));
  SubscribeResponse stale;
  stale.set_stale(true);
  Subscription()->Push(stale);
  EXPECT_EQ(follower->told.size(), 1u);
  EXPECT_EQ(Find().resource, before);
  EXPECT_EQ(Addresses(), "[10.0.0.1]");
  EXPECT_EQ(cache_->Stats().builds, 1);
}

TEST_F(ServiceCacheTest, AChangeOfWhoIsLeftOutKeepsTheVersion) {
  Follow();
  Subscription()->Push(Snapshot({Instance("1")}));
  const ResourcePtr before = Find().resource;
  ServiceInstance draining = Instance("2");
  draining.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  Subscription()->Push(Delta({draining}, {}));
  EXPECT_EQ(Find().resource, before);
}

TEST_F(ServiceCacheTest, TheEndOfASubscriptionTakesNothing) {
  const auto follower = Follow();
  Subscription()->Push(Snapshot({Instance("1")}));
  Subscription()->Push(Snapshot({Instance("9")}, /*more=*/true));
  Subscription()->End(absl::UnavailableError("gone"));
  EXPECT_EQ(Addresses(), "[10.0.0.1]");
  EXPECT_EQ(registry_.subscriptions().size(), 1u);
  clock_.Advance(options_.resubscribe_delay + absl::Milliseconds(10));
  ASSERT_EQ(registry_.subscriptions().size(), 2u);
  // What had come of a snapshot before the end is not part of the next.
  Subscription(1)->Push(Snapshot({Instance("1"), Instance("2")}));
  EXPECT_EQ(Addresses(), "[10.0.0.110.0.0.2]");
  EXPECT_EQ(follower->told.size(), 2u);
}

TEST_F(ServiceCacheTest, AnEventThatDoesNotFollowIsNotTakenAndAnotherSubscriptionIs) {
  const auto follower = Follow();
  Subscription()->Push(Snapshot({Instance("1")}));
  SubscribeResponse lost = Delta({Instance("2")}, {});
  lost.set_revision(9);
  lost.mutable_delta()->set_base_revision(8);
  Subscription()->Push(lost);
  Subscription()->Push(lost);
  EXPECT_EQ(Addresses(), "[10.0.0.1]");
  clock_.Advance(options_.resubscribe_delay + absl::Milliseconds(10));
  ASSERT_EQ(registry_.subscriptions().size(), 2u) << "one, however many events do not follow";
  EXPECT_TRUE(Subscription()->cancelled());
  Subscription(1)->Push(Snapshot({Instance("3")}));
  EXPECT_EQ(Addresses(), "[10.0.0.3]");
}

TEST_F(ServiceCacheTest, WhatIsNotKnownForLongIsEmpty) {
  const auto follower = Follow();
  clock_.Advance(options_.first_wait - absl::Milliseconds(20));
  EXPECT_EQ(Addresses(), "?");
  clock_.Advance(absl::Milliseconds(40));
  EXPECT_THAT(follower->told, ElementsAre("orders"));
  EXPECT_EQ(Addresses(), "placeholder");
  const uint64_t placeholder = Find().resource->version;
  // Known to be empty now: the bytes are the same, but a client that waits must hear of it.
  Subscription()->Push(Snapshot({}));
  EXPECT_EQ(follower->told.size(), 2u);
  EXPECT_EQ(Addresses(), "");
  EXPECT_EQ(Find().resource->version, placeholder);
}

TEST_F(ServiceCacheTest, ANameThatIsNoServiceIsEmptyAtOnce) {
  const auto follower = Follow("or ders");
  EXPECT_THAT(registry_.subscriptions(), IsEmpty());
  EXPECT_THAT(follower->told, ElementsAre("or ders"));
  EXPECT_EQ(Addresses("or ders"), "");
}

TEST_F(ServiceCacheTest, ServicesAreBoundedAndThoseThatLingerMakeRoom) {
  options_.max_services = 3;
  options_.max_lingering = 2;
  cache_ = std::make_unique<ServiceCache>(&registry_, options_);
  const auto follower = Follow("a");
  const auto follow = [&](const std::string& name) { return cache_->Follow(name, follower); };
  EXPECT_TRUE(follow("b").ok());
  EXPECT_TRUE(follow("c").ok());
  const absl::Status refused = follow("d");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 services"));
  EXPECT_EQ(registry_.subscriptions().size(), 3u);
  EXPECT_TRUE(cache_->Follow("a", std::make_shared<RecordingFollower>()).ok()) << "it is there";
  cache_->Unfollow("b", follower);
  EXPECT_FALSE(Subscription(1)->cancelled()) << "it lingers";
  EXPECT_TRUE(follow("d").ok());
  EXPECT_TRUE(Subscription(1)->cancelled());
  // A client that leaves many names leaves few behind.
  cache_->Unfollow("c", follower);
  cache_->Unfollow("d", follower);
  EXPECT_EQ(cache_->Stats().services, 3);
  EXPECT_TRUE(follow("c").ok());
  cache_->Unfollow("c", follower);
  EXPECT_EQ(cache_->Stats().services, 3) << "lingers once";
  EXPECT_TRUE(follow("e").ok());
  EXPECT_TRUE(Subscription(3)->cancelled()) << "d was left first";
  cache_->Unfollow("e", follower);
  EXPECT_EQ(cache_->Stats().services, 3);
  clock_.Advance(options_.linger + absl::Seconds(1));
  EXPECT_EQ(cache_->Stats().services, 1);
}

TEST_F(ServiceCacheTest, AServiceLingersForTheNextFollower) {
  const auto first = Follow();
  Subscription()->Push(Snapshot({Instance("1")}));
  cache_->Unfollow("orders", first);
  Subscription()->Push(Delta({Instance("2")}, {}));
  EXPECT_EQ(first->told.size(), 1u) << "it follows no more";
  clock_.Advance(options_.linger - absl::Seconds(1));
  const auto second = Follow();
  EXPECT_EQ(registry_.subscriptions().size(), 1u);
  EXPECT_EQ(Addresses(), "[10.0.0.110.0.0.2]");
  // The timer of the first end does not end the second.
  clock_.Advance(options_.linger);
  EXPECT_FALSE(Subscription()->cancelled());
  cache_->Unfollow("orders", second);
  clock_.Advance(options_.linger + absl::Seconds(1));
  EXPECT_TRUE(Subscription()->cancelled());
  EXPECT_EQ(cache_->Stats().services, 0);
  EXPECT_EQ(Addresses(), "?");
}

TEST_F(ServiceCacheTest, ALargeServiceIsToldOfSeldomAndASmallOneAtOnce) {
  options_.push_interval_per_instance = absl::Milliseconds(10);
  cache_ = std::make_unique<ServiceCache>(&registry_, options_);
  const auto follower = Follow();
  std::vector<ServiceInstance> instances;
  for (int i = 1; i <= 100; ++i) instances.push_back(Instance(absl::StrCat(i)));
  Subscription()->Push(Snapshot(instances));
  EXPECT_EQ(follower->told.size(), 1u);
  // A second, for a hundred.
  for (int i = 101; i <= 110; ++i) Subscription()->Push(Delta({Instance(absl::StrCat(i))}, {}));
  EXPECT_EQ(follower->told.size(), 1u);
  clock_.Advance(absl::Seconds(1.2));
  EXPECT_EQ(follower->told.size(), 2u);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(follower->told.size(), 2u);
  // After a pause the first change is published at once.
  Subscription()->Push(Delta({}, {"1"}));
  EXPECT_EQ(follower->told.size(), 3u);
}

TEST_F(ServiceCacheTest, ZonesThatMatterHaveAnAnswerOfTheirOwn) {
  options_.zone_aware = true;
  cache_ = std::make_unique<ServiceCache>(&registry_, options_);
  Follow();
  Subscription()->Push(Snapshot({Instance("1", "a"), Instance("2", "b")}));
  EXPECT_EQ(Addresses("orders", "a"), "[10.0.0.1][10.0.0.2]");
  EXPECT_EQ(Addresses("orders", "b"), "[10.0.0.2][10.0.0.1]");
  EXPECT_EQ(Addresses("orders", ""), "[10.0.0.1][10.0.0.2]");
  // All clients of zones without instances share one.
  EXPECT_EQ(Find("orders", "c").resource, Find("orders", "").resource);
  EXPECT_EQ(cache_->Stats().builds, 3);
  // A zone that empties and fills again.
  Subscription()->Push(Delta({}, {"2"}));
  EXPECT_EQ(Find("orders", "b").resource, Find("orders", "").resource);
  Subscription()->Push(Delta({Instance("2", "b")}, {}));
  EXPECT_EQ(Addresses("orders", "b"), "[10.0.0.2][10.0.0.1]");
}

TEST_F(ServiceCacheTest, CountsInstancesThatClientsCannotUse) {
  const auto follower = Follow();
  ServiceInstance name = Instance("1");
  name.set_address("host.example");
  Subscription()->Push(Snapshot({name, Instance("2")}));
  EXPECT_EQ(cache_->Stats().unusable_instances, 1);
  Subscription()->Push(Delta({Instance("1")}, {}));
  EXPECT_EQ(cache_->Stats().unusable_instances, 0);
  Subscription()->Push(Delta({name}, {}));
  Subscription()->Push(Delta({}, {"1"}));
  EXPECT_EQ(cache_->Stats().unusable_instances, 0);
  Subscription()->Push(Delta({name}, {}));
  cache_->Unfollow("orders", follower);
  clock_.Advance(options_.linger + absl::Seconds(1));
  EXPECT_EQ(cache_->Stats().unusable_instances, 0);
}

TEST_F(ServiceCacheTest, OneServicesChangeIsNothingToAnother) {
  const auto orders = Follow("orders");
  const auto payments = Follow("payments");
  Subscription(0)->Push(Snapshot({}));
  Subscription(1)->Push(Snapshot({}));
  Find("orders");
  const ResourcePtr before = Find("payments").resource;
  for (int i = 1; i < 10; ++i) {
    Subscription(0)->Push(Delta({Instance(absl::StrCat(i))}, {}));
    Find("orders");
  }
  EXPECT_THAT(payments->told, ElementsAre("payments"));
  EXPECT_EQ(Find("payments").resource, before);
  EXPECT_EQ(cache_->Stats().builds, 11);
}

}  // namespace
}  // namespace failback::xds
