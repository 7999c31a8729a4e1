// What front doors know of services and namespaces, and who is woken when: on simulated time.

#include "gateway/catalog/catalog.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gateway/catalog/index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "retry/simulated_clock.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback::catalog {
namespace {

using ::testing::ElementsAre;

SubscribeResponse Event(uint64_t epoch, uint64_t revision) {
  SubscribeResponse event;
  event.set_epoch(epoch);
  event.set_revision(revision);
  return event;
}

SubscribeResponse Snapshot(const std::vector<std::string>& ids, uint64_t revision = 1,
                           uint64_t epoch = 1, const std::string& service = "orders") {
  SubscribeResponse event = Event(epoch, revision);
  event.mutable_snapshot();
  for (const std::string& id : ids) {
    *event.mutable_snapshot()->add_instances() = MakeInstance(id, 8080, service);
  }
  return event;
}

SubscribeResponse Upsert(const std::string& id, uint64_t base, uint64_t revision) {
  SubscribeResponse event = Event(1, revision);
  event.mutable_delta()->set_base_revision(base);
  *event.mutable_delta()->add_upserts() = MakeInstance(id);
  return event;
}

SubscribeResponse Names(const std::vector<std::string>& services, uint64_t revision = 1) {
  SubscribeResponse event = Event(1, revision);
  event.mutable_snapshot();
  for (const std::string& service : services) {
    ServiceInstance* const entry = event.mutable_snapshot()->add_instances();
    entry->mutable_key()->set_namespace_("default");
    entry->mutable_key()->set_service(service);
    entry->set_instance_count(1);
  }
  return event;
}

class CatalogTest : public ::testing::Test {
 protected:
  CatalogTest() {
    options_.timer = timer_.get();
    options_.now = [this] { return now_; };
    Make();
  }
  void Make() {
    catalog_ = nullptr;
    catalog_ = std::make_unique<Catalog>(&registry_, options_);
  }

  ServiceView Look(const std::string& service = "orders") {
    return catalog_->Service("default", service);
  }
  NamespaceView LookAtAll() { return catalog_->Namespace("default"); }
  Wait WaitFor(const ServiceView& seen, const std::string& service = "orders") {
    return catalog_->WaitForService("default", service, seen.version, [this] { ++wakes_; });
  }
  size_t subscriptions() const { return registry_.subscriptions().size(); }
  std::shared_ptr<FakeSubscription> Subscription(size_t index) {
    return registry_.WaitForSubscription(index, absl::ZeroDuration());
  }
  std::shared_ptr<FakeSubscription> SubscriptionOf(const std::string& service) {
    for (const auto& subscription : registry_.subscriptions()) {
      if (subscription->request().selector().service() == service) return subscription;
    }
    return nullptr;
  }
  static std::vector<std::string> NamesIn(const NamespaceView& view) {
    std::vector<std::string> names;
    for (const auto& service : *view.services) names.push_back(service.name);
    return names;
  }

  SimulatedClock clock_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_, absl::Milliseconds(10));
  FakeRegistry registry_;
  Catalog::Options options_;
  int wakes_ = 0;
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(CatalogTest, TheFirstQuestion_FollowsTheService_AndTheNextOnesCostNothing) {
  EXPECT_EQ(Look().knowledge, Knowledge::kPending);
  ASSERT_EQ(subscriptions(), 1u);
  Subscription(0)->Push(Snapshot({"a", "b"}));
  const ServiceView view = Look();
  EXPECT_EQ(view.knowledge, Knowledge::kKnown);
  EXPECT_EQ(view.instances->size(), 2u);
  EXPECT_EQ(view.index, FirstIndex(now_));
  EXPECT_LT(view.index, uint64_t{1} << 53);
  EXPECT_EQ(Look().instances, view.instances);
  EXPECT_EQ(subscriptions(), 1u);
}

TEST_F(CatalogTest, AWait_IsWokenOnce_ByTheNextChange) {
  const Wait first = WaitFor(Look());
  EXPECT_EQ(wakes_, 0);
  Subscription(0)->Push(Snapshot({"a"}));
  EXPECT_EQ(wakes_, 1);
  const ServiceView view = Look();
  const Wait second = WaitFor(view);
  EXPECT_EQ(wakes_, 1);
  Subscription(0)->Push(Upsert("b", 1, 2));
  EXPECT_EQ(wakes_, 2);
  EXPECT_EQ(Look().index, view.index + 1);
  Subscription(0)->Push(Upsert("c", 2, 3));
  EXPECT_EQ(wakes_, 2);
  const Wait late = WaitFor(view);
  EXPECT_EQ(wakes_, 3) << "what has changed already";
}

TEST_F(CatalogTest, AWaitThatIsDestroyed_IsNotWoken) {
  { const Wait wait = WaitFor(Look()); }
  EXPECT_EQ(catalog_->Stats().waiting, 0);
  Subscription(0)->Push(Snapshot({"a"}));
  EXPECT_EQ(wakes_, 0);
}

TEST_F(CatalogTest, NothingIsKnown_AfterTheFirstWaitItIsSaid) {
  const Wait wait = WaitFor(Look());
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(Look().knowledge, Knowledge::kUnavailable);
  Subscription(0)->Push(Snapshot({}));
  EXPECT_EQ(Look().knowledge, Knowledge::kKnown);
  EXPECT_GT(Look().index, 0u);
}

TEST_F(CatalogTest, AnOutage_TakesNothingAway_AndTheSameSetAgainIsNoChangeOfIt) {
  Look();
  Subscription(0)->Push(Snapshot({"a"}));
  const ServiceView before = Look();
  now_ += absl::Seconds(100);
  Subscription(0)->End(absl::UnavailableError("away"));
  const ServiceView outage = Look();
  EXPECT_EQ(outage.stale_since, now_);
  EXPECT_EQ(outage.index, before.index);
  EXPECT_EQ(outage.instances, before.instances);
  clock_.Advance(absl::Seconds(2));
  ASSERT_EQ(subscriptions(), 2u);
  EXPECT_EQ(Subscription(1)->request().revision(), 1u);
  Subscription(1)->Push(Snapshot({"a"}, 5));
  const ServiceView after = Look();
  EXPECT_FALSE(after.stale());
  EXPECT_EQ(after.index, before.index);
}

TEST_F(CatalogTest, AnEmptyStaleSet_SaysNothing) {
  Look();
  SubscribeResponse empty = Snapshot({});
  empty.set_stale(true);
  Subscription(0)->Push(empty);
  EXPECT_EQ(Look().knowledge, Knowledge::kPending);
}

TEST_F(CatalogTest, ANewEpoch_BeginsTheIndexAtItsSecond) {
  Look();
  Subscription(0)->Push(Snapshot({"a"}, 70));
  const uint64_t before = Look().index;
  now_ += absl::Seconds(5);
  Subscription(0)->Push(Snapshot({"a"}, 1, 2));
  EXPECT_EQ(Look().index, FirstIndex(now_));
  EXPECT_GT(Look().index, before + 1);
  now_ -= absl::Hours(1);
  Subscription(0)->Push(Snapshot({"a"}, 1, 3));
  EXPECT_EQ(Look().index, FirstIndex(now_ + absl::Hours(1)) + 1) << "the clock was set back";
}

TEST_F(CatalogTest, ARefusal_TakesAllAway_AndIsTriedAgainWithAQuestion) {
  Look();
  Subscription(0)->Push(Snapshot({"a"}));
  Subscription(0)->End(absl::PermissionDeniedError("no"));
  EXPECT_EQ(Look().knowledge, Knowledge::kDenied);
  EXPECT_EQ(Look().instances, nullptr);
  clock_.Advance(absl::Seconds(4));
  Look();
  EXPECT_EQ(subscriptions(), 1u);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(subscriptions(), 1u) << "nobody has asked";
  Look();
  clock_.Advance(absl::Milliseconds(20));
  ASSERT_EQ(subscriptions(), 2u);
  Subscription(1)->Push(Snapshot({"a"}));
  EXPECT_EQ(Look().knowledge, Knowledge::kKnown);
}

TEST_F(CatalogTest, ANameThatNoServiceHas_IsKnownToBeEmpty_AndIsNotFollowed) {
  EXPECT_EQ(Look("?").knowledge, Knowledge::kKnown);
  EXPECT_TRUE(Look("?").instances->empty());
  const Wait wait = WaitFor(Look("?"), "?");
  EXPECT_EQ(subscriptions(), 0u);
}

TEST_F(CatalogTest, TooManySets_TheOneAskedForLeastRecentlyGoes_UnlessAClientWaits) {
  options_.max_sets = 2;
  Make();
  Look("a");
  Look("b");
  Look("a");
  Look("c");
  EXPECT_TRUE(SubscriptionOf("b")->cancelled());
  EXPECT_EQ(catalog_->Stats().evicted, 1);
  const Wait wait_a = WaitFor(Look("a"), "a");
  const Wait wait_c = WaitFor(Look("c"), "c");
  EXPECT_EQ(Look("d").knowledge, Knowledge::kTooMany);
}

TEST_F(CatalogTest, WhatNobodyAsksFor_IsFollowedNoLonger) {
  Look("a");
  LookAtAll();
  clock_.Advance(absl::Minutes(9));
  EXPECT_EQ(catalog_->Stats().sets, 2);
  Look("b");
  SubscriptionOf("b")->Push(Snapshot({"x"}, 1, 1, "b"));
  const Wait wait = WaitFor(Look("b"), "b");
  clock_.Advance(absl::Minutes(20));
  EXPECT_EQ(catalog_->Stats().sets, 1);
  EXPECT_TRUE(SubscriptionOf("a")->cancelled());
  EXPECT_TRUE(SubscriptionOf("")->cancelled());
  EXPECT_FALSE(SubscriptionOf("b")->cancelled());
}

TEST_F(CatalogTest, ANamespace_IsKnownWhenEachServiceIs) {
  LookAtAll();
  SubscriptionOf("")->Push(Names({"orders", "users"}));
  EXPECT_EQ(LookAtAll().knowledge, Knowledge::kPending);
  SubscriptionOf("orders")->Push(Snapshot({"a"}));
  EXPECT_EQ(LookAtAll().knowledge, Knowledge::kPending);
  SubscriptionOf("users")->Push(Snapshot({"u"}, 1, 1, "users"));
  const NamespaceView view = LookAtAll();
  ASSERT_EQ(view.knowledge, Knowledge::kKnown);
  EXPECT_THAT(NamesIn(view), ElementsAre("orders", "users"));
  SubscriptionOf("")->Push(Names({"new", "orders", "users"}, 2));
  EXPECT_THAT(NamesIn(LookAtAll()), ElementsAre("orders", "users")) << "not known yet";
  SubscriptionOf("new")->Push(Snapshot({"n"}, 2, 1, "new"));
  EXPECT_THAT(NamesIn(LookAtAll()), ElementsAre("new", "orders", "users"));
  EXPECT_GT(LookAtAll().index, view.index);
  SubscriptionOf("")->Push(Names({"new"}, 3));
  EXPECT_THAT(NamesIn(LookAtAll()), ElementsAre("new"));
}

TEST_F(CatalogTest, AServiceThatMayNotBeRead_IsLeftOutOfItsNamespace) {
  LookAtAll();
  SubscriptionOf("")->Push(Names({"orders", "users"}));
  SubscriptionOf("users")->End(absl::PermissionDeniedError("no"));
  SubscriptionOf("orders")->Push(Snapshot({"a"}));
  EXPECT_THAT(NamesIn(LookAtAll()), ElementsAre("orders"));
}

TEST_F(CatalogTest, AnyChangeWakesWhoWaitsForTheNamespace_ButNotTooOften) {
  LookAtAll();
  SubscriptionOf("")->Push(Names({"orders"}));
  SubscriptionOf("orders")->Push(Snapshot({"a"}));
  clock_.Advance(absl::Seconds(1));
  for (int change = 0; change < 10; ++change) {
    const Wait wait =
        catalog_->WaitForNamespace("default", LookAtAll().version, [this] { ++wakes_; });
    SubscriptionOf("orders")->Push(Upsert(absl::StrCat("i", change), change + 1, change + 2));
    clock_.Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(wakes_, 1);
  const uint64_t version = LookAtAll().version;
  const Wait wait = catalog_->WaitForNamespace("default", version - 1, [this] { ++wakes_; });
  clock_.Advance(absl::Milliseconds(100));
  EXPECT_EQ(wakes_, 2);
}

TEST_F(CatalogTest, AView_HasWhatMadeItOutOfTheOneBefore) {
  Look();
  Subscription(0)->Push(Snapshot({"a"}));
  EXPECT_EQ(Look().changes, nullptr) << "the first";
  Subscription(0)->Push(Upsert("b", 1, 2));
  const ServiceView view = Look();
  ASSERT_NE(view.changes, nullptr);
  EXPECT_EQ(view.base_revision, 1u);
  EXPECT_EQ(view.changes->upserts.size(), 1u);
  SubscribeResponse stale = Snapshot({"a", "b"}, 2);
  stale.set_stale(true);
  Subscription(0)->Push(stale);
  EXPECT_TRUE(Look().stale());
  EXPECT_EQ(Look().changes, view.changes) << "the set is the same";
  Subscription(0)->Push(Snapshot({"a"}, 1, 2));
  EXPECT_EQ(Look().changes, nullptr) << "of another epoch";
}

TEST_F(CatalogTest, ASetThatWasPassedOver_IsNoPartOfTheChanges) {
  Look();
  Subscription(0)->Push(Snapshot({"a", "b"}));
  SubscribeResponse empty = Snapshot({}, 2);
  empty.set_stale(true);
  Subscription(0)->Push(empty);
  Subscription(0)->Push(Snapshot({"b"}, 3));
  const ServiceView view = Look();
  ASSERT_NE(view.changes, nullptr);
  EXPECT_EQ(view.base_revision, 1u);
  EXPECT_EQ(view.changes->removals.size(), 1u);
  EXPECT_TRUE(view.changes->upserts.empty());
}

TEST_F(CatalogTest, TheListOfServices_IsFollowedOnce_ForItselfAndForTheNamespace) {
  EXPECT_EQ(Look("").knowledge, Knowledge::kPending);
  const Wait wait = WaitFor(Look(""), "");
  SubscriptionOf("")->Push(Names({"orders"}));
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(Look("").instances->size(), 1u);
  EXPECT_EQ(subscriptions(), 1u) << "its services are not";
  LookAtAll();
  ASSERT_EQ(subscriptions(), 2u);
  SubscriptionOf("orders")->Push(Snapshot({"a"}));
  EXPECT_THAT(NamesIn(LookAtAll()), ElementsAre("orders")) << "the list was known already";
}

TEST_F(CatalogTest, Renderings_AreMadeOncePerState) {
  Look();
  Subscription(0)->Push(Snapshot({"a"}));
  int made = 0;
  const auto render = [&] { return absl::StrCat("bytes ", ++made); };
  const Renderings::Bytes first = Look().renderings->Get("json", render);
  EXPECT_EQ(Look().renderings->Get("json", render), first);
  EXPECT_EQ(*Look().renderings->Get("xml", render), "bytes 2");
  Subscription(0)->Push(Upsert("b", 1, 2));
  EXPECT_EQ(*Look().renderings->Get("json", render), "bytes 3");
}

TEST_F(CatalogTest, KindsThatClientsMakeUp_TakeNoPlaceFromTheOthers) {
  Look();
  Subscription(0)->Push(Snapshot({"a"}));
  const std::shared_ptr<Renderings> renderings = Look().renderings;
  int made = 0;
  const auto render = [&] { return absl::StrCat(++made); };
  for (int i = 0; i < 100; ++i) renderings->Get(absl::StrCat("tag ", i), render, /*made_up=*/true);
  const Renderings::Bytes first = renderings->Get("json", render);
  EXPECT_EQ(renderings->Get("json", render), first);
  EXPECT_EQ(renderings->Get("tag 0", render, true), renderings->Get("tag 0", render, true));
  EXPECT_NE(renderings->Get("tag 99", render, true), renderings->Get("tag 99", render, true));
}

// By the status a client waits; 403 would be about the caller.
TEST(WhyUnknownTest, WhatTheRegistryDoesNotSay_IsUnavailableWithAReasonAndADelay) {
  for (const Knowledge knowledge :
       {Knowledge::kPending, Knowledge::kUnavailable, Knowledge::kDenied}) {
    const absl::Status why = WhyUnknown(knowledge, /*last=*/true);
    EXPECT_TRUE(absl::IsUnavailable(why)) << why;
    EXPECT_EQ(ReasonOf(why), registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE);
    EXPECT_TRUE(RetryDelayOf(why).has_value());
  }
  EXPECT_TRUE(WhyUnknown(Knowledge::kPending, /*last=*/false).ok());
}

}  // namespace
}  // namespace failback::catalog
