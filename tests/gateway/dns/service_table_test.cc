// What is known of services, on simulated time: how long, of how many, and from when on.

#include "gateway/dns/service_table.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "retry/simulated_clock.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback::dns {
namespace {

using State = Known::State;

SubscribeResponse Snapshot(const std::vector<std::string>& ids, bool stale = false,
                           uint64_t revision = 1) {
  SubscribeResponse event;
  event.set_epoch(1);
  event.set_revision(revision);
  event.set_stale(stale);
  event.mutable_snapshot();
  for (const std::string& id : ids) *event.mutable_snapshot()->add_instances() = MakeInstance(id);
  return event;
}

SubscribeResponse Stale() {
  SubscribeResponse event;
  event.set_epoch(1);
  event.set_revision(1);
  event.set_stale(true);
  return event;
}

class ServiceTableTest : public ::testing::Test {
 protected:
  ServiceTableTest() {
    options_.timer = timer_.get();
    options_.key = {1, 2};
    Make();
  }
  void Make() {
    table_ = nullptr;
    table_ = std::make_unique<ServiceTable>(&registry_, options_, [this] { ++wakes_; });
  }

  ServiceTable::Found Look(const std::string& service = "orders",
                           const ServiceTable::Asker& asker = {}) {
    return table_->Look("default", service, asker);
  }
  State StateOf(const std::string& service = "orders") { return Look(service).known.state; }
  size_t Targets() {
    const ServiceTable::Found found = Look();
    return found.records == nullptr ? 0 : found.records->Of("").targets.size();
  }
  std::shared_ptr<FakeSubscription> Subscription(size_t index = 0) {
    return registry_.WaitForSubscription(index, absl::ZeroDuration());
  }
  size_t subscriptions() const { return registry_.subscriptions().size(); }
  void Pass(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Minutes(1)) {
      clock_.Advance(std::min(absl::Minutes(1), time - passed));
      table_->Sweep();
    }
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_, absl::Milliseconds(10));
  FakeRegistry registry_;
  ServiceTable::Options options_;
  int wakes_ = 0;
  std::unique_ptr<ServiceTable> table_;
};

TEST_F(ServiceTableTest, TheFirstQuestion_FollowsTheService_AndWaits) {
  const ServiceTable::Found first = Look();
  EXPECT_TRUE(first.wait);
  EXPECT_EQ(first.known.state, State::kNothing);
  ASSERT_EQ(subscriptions(), 1u);
  EXPECT_EQ(Subscription()->request().selector().service(), "orders");
  EXPECT_EQ(Subscription()->request().selector().namespace_(), "default");
  Subscription()->Push(Snapshot({"a", "b"}));
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(Targets(), 1u) << "both have the same address and port";
}

TEST_F(ServiceTableTest, AChange_IsInTheNextAnswer_AndOthersCostNothing) {
  Look();
  Subscription()->Push(Snapshot({"a"}));
  EXPECT_EQ(StateOf(), State::kPresent);
  EXPECT_EQ(Targets(), 1u);
  Look();
  EXPECT_EQ(table_->Stats().builds, 1);
  SubscribeResponse change;
  change.set_epoch(1);
  change.set_revision(2);
  change.mutable_delta()->set_base_revision(1);
  *change.mutable_delta()->add_upserts() = MakeInstance("b", 9090);
  Subscription()->Push(change);
  EXPECT_EQ(Targets(), 2u);
  EXPECT_EQ(table_->Stats().builds, 2);
  EXPECT_EQ(subscriptions(), 1u);
  EXPECT_EQ(wakes_, 1) << "only what was not known wakes";
}

TEST_F(ServiceTableTest, NothingIsKnown_AfterTheWaitItIsSaid) {
  Look();
  clock_.Advance(absl::Milliseconds(1999));
  EXPECT_TRUE(Look().wait);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(Look().wait);
  EXPECT_EQ(StateOf(), State::kNothing);
}

TEST_F(ServiceTableTest, AnEmptyService_IsAbsent_OrPresentForAnHour) {
  Look();
  Subscription()->Push(Snapshot({}));
  EXPECT_EQ(StateOf(), State::kAbsent);
  Subscription()->Push(Snapshot({"a"}, false, 2));
  EXPECT_EQ(StateOf(), State::kPresent);
  Subscription()->Push(Snapshot({}, false, 3));
  EXPECT_EQ(StateOf(), State::kPresent);
  EXPECT_EQ(Targets(), 0u);
  Pass(absl::Minutes(59));
  EXPECT_EQ(StateOf(), State::kPresent);
  Pass(absl::Minutes(2));
  EXPECT_EQ(StateOf(), State::kAbsent);
}

TEST_F(ServiceTableTest, AnEmptyStaleSet_SaysNothing) {
  Look();
  Subscription()->Push(Snapshot({}, /*stale=*/true));
  EXPECT_EQ(StateOf(), State::kNothing);
  SubscribeResponse fresh = Stale();
  fresh.set_stale(false);
  EXPECT_EQ(wakes_, 0) << "an answer to none of those that wait";
  Subscription()->Push(fresh);
  EXPECT_EQ(StateOf(), State::kAbsent);
  EXPECT_EQ(wakes_, 1);
}

TEST_F(ServiceTableTest, WhatComesAfterAnEmptyStaleSet_Wakes) {
  Look();
  Subscription()->Push(Snapshot({}, /*stale=*/true));
  Subscription()->Push(Snapshot({"a"}, /*stale=*/true, 2));
  EXPECT_EQ(wakes_, 1) << "the last known state is an answer";
  EXPECT_EQ(Targets(), 1u);
}

TEST_F(ServiceTableTest, AnEmptyStaleSet_TakesTheKnownOneAwayOnlyWhenItIsTrue) {
  Look();
  Subscription()->Push(Snapshot({"a"}));
  Subscription()->End(absl::UnavailableError("gone"));
  clock_.Advance(absl::Seconds(2));
  Subscription(1)->Push(Snapshot({}, /*stale=*/true, 2));
  EXPECT_EQ(Targets(), 1u);
  EXPECT_TRUE(Look().known.stale);
  SubscribeResponse fresh = Stale();
  fresh.set_stale(false);
  Subscription(1)->Push(fresh);
  EXPECT_EQ(StateOf(), State::kPresent) << "for an hour";
  EXPECT_EQ(Targets(), 0u);
  EXPECT_EQ(wakes_, 1) << "of the first set";
}

TEST_F(ServiceTableTest, ADeltaAfterAnEmptyStaleSet_IsOfThatSet) {
  Look();
  Subscription()->Push(Snapshot({"a", "b"}));
  Subscription()->Push(Snapshot({}, /*stale=*/true, 2));
  SubscribeResponse change;
  change.set_epoch(1);
  change.set_revision(3);
  change.mutable_delta()->set_base_revision(2);
  *change.mutable_delta()->add_upserts() = MakeInstance("c", 9090);
  Subscription()->Push(change);
  EXPECT_EQ(Targets(), 1u) << "c alone";
}

TEST_F(ServiceTableTest, AnotherSubscription_BeginsWhereTheOneBeforeEnded) {
  Look();
  Subscription()->Push(Snapshot({"a"}, false, 7));
  EXPECT_EQ(Subscription()->request().revision(), 0u);
  Subscription()->End(absl::UnavailableError("gone"));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Subscription(1)->request().epoch(), 1u);
  EXPECT_EQ(Subscription(1)->request().revision(), 7u);
  SubscribeResponse change;
  change.set_epoch(1);
  change.set_revision(9);
  change.mutable_delta()->set_base_revision(7);
  *change.mutable_delta()->add_upserts() = MakeInstance("b", 9090);
  Subscription(1)->Push(change);
  EXPECT_EQ(Targets(), 2u);
  EXPECT_FALSE(Look().known.stale);
  Subscription(1)->End(Refusal(registry::v1::ERROR_REASON_POSITION_LOST, "too far behind"));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Subscription(2)->request().revision(), 0u) << "with a snapshot";
  EXPECT_EQ(Targets(), 2u);
}

TEST_F(ServiceTableTest, AnAgentThatKnowsLess_SaysOnlyThatItIsStale) {
  Look();
  Subscription()->Push(Snapshot({"a"}));
  Subscription()->End(absl::UnavailableError("gone"));
  clock_.Advance(absl::Seconds(2));
  Subscription(1)->Push(Stale());
  EXPECT_EQ(Targets(), 1u);
  EXPECT_TRUE(Look().known.stale);
}

TEST_F(ServiceTableTest, WhatIsKnown_StaysWhileTheRegistryIsUnavailable) {
  Look();
  Subscription()->Push(Snapshot({"a"}));
  EXPECT_FALSE(Look().known.stale);
  Subscription()->Push(Stale());
  EXPECT_TRUE(Look().known.stale);
  EXPECT_EQ(Targets(), 1u);
  Subscription()->End(absl::UnavailableError("gone"));
  EXPECT_EQ(Targets(), 1u);
  EXPECT_TRUE(Look().known.stale);
  clock_.Advance(absl::Seconds(2));
  ASSERT_EQ(subscriptions(), 2u) << "it subscribes again";
  EXPECT_EQ(Targets(), 1u);
  Subscription(1)->Push(Snapshot({"a"}, false, 1));
  EXPECT_FALSE(Look().known.stale);
}

TEST_F(ServiceTableTest, AGapInTheStream_IsAnotherSubscription) {
  Look();
  Subscription()->Push(Snapshot({"a"}));
  SubscribeResponse gap;
  gap.set_epoch(1);
  gap.set_revision(9);
  gap.mutable_delta()->set_base_revision(8);
  Subscription()->Push(gap);
  EXPECT_EQ(Targets(), 1u);
  clock_.Advance(absl::Seconds(2));
  ASSERT_EQ(subscriptions(), 2u);
  EXPECT_TRUE(Subscription(0)->cancelled());
  EXPECT_EQ(Subscription(1)->request().epoch(), 0u) << "with a snapshot";
  Subscription(1)->Push(Snapshot({}, false, 9));
  EXPECT_EQ(Targets(), 0u);
}

TEST_F(ServiceTableTest, WhatMayNotBeRead_IsDenied_AndForgotten) {
  Look();
  Subscription()->Push(Snapshot({"a"}));
  EXPECT_EQ(StateOf(), State::kPresent);
  Subscription()->End(absl::PermissionDeniedError("not yours"));
  EXPECT_EQ(StateOf(), State::kDenied);
  EXPECT_EQ(wakes_, 1) << "no query waited";
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(StateOf(), State::kDenied);
  EXPECT_EQ(subscriptions(), 1u);
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(subscriptions(), 1u) << "no question: nothing is tried";
  EXPECT_EQ(StateOf(), State::kDenied) << "until the registry says otherwise";
  clock_.Advance(absl::Seconds(1));
  ASSERT_EQ(subscriptions(), 2u);
  EXPECT_EQ(StateOf(), State::kDenied);
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(StateOf(), State::kDenied);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(subscriptions(), 2u) << "it is being tried";
  EXPECT_EQ(Subscription(1)->request().revision(), 0u);
  Subscription(1)->Push(Snapshot({"a"}));
  EXPECT_EQ(StateOf(), State::kPresent);
}

TEST_F(ServiceTableTest, ThatAServiceMayNotBeRead_WakesThoseThatWait) {
  Look();
  Subscription()->End(absl::PermissionDeniedError("not yours"));
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(StateOf(), State::kDenied);
}

TEST_F(ServiceTableTest, AServiceIsFollowed_ForAnHourAfterItsLastQuestion) {
  Look();
  Subscription()->Push(Snapshot({"a"}));
  Pass(absl::Minutes(50));
  Look();
  Pass(absl::Minutes(59));
  EXPECT_FALSE(Subscription()->cancelled());
  Pass(absl::Minutes(2));
  EXPECT_TRUE(Subscription()->cancelled());
  EXPECT_EQ(table_->Stats().services, 0);
}

TEST_F(ServiceTableTest, ANameStaysKnown_ForAnHourAfterItsLastInstance) {
  Look();
  Subscription()->Push(Snapshot({"a"}));
  Pass(absl::Minutes(50));
  Subscription()->Push(Snapshot({}, false, 2));
  Pass(absl::Minutes(55));
  EXPECT_EQ(StateOf(), State::kPresent) << "not asked for 105 minutes, empty for 55";
  EXPECT_EQ(subscriptions(), 1u);
}

TEST_F(ServiceTableTest, NamesOfNoService_AreNotFollowed) {
  EXPECT_EQ(StateOf(std::string("a\0b", 3)), State::kAbsent);
  EXPECT_EQ(StateOf("-a"), State::kAbsent);
  EXPECT_EQ(subscriptions(), 0u);
}

TEST_F(ServiceTableTest, NamesThatNobodyRegistered_TakeAQuarter) {
  options_.max_services = 8;
  Make();
  for (int i = 0; i < 6; ++i) {
    Look(absl::StrCat("s", i));
    Subscription(i)->Push(Snapshot({"a"}));
    EXPECT_EQ(StateOf(absl::StrCat("s", i)), State::kPresent);
  }
  for (int i = 0; i < 100; ++i) Look(absl::StrCat("made-up-", i));
  EXPECT_EQ(table_->Stats().services, 8);
  EXPECT_EQ(table_->Stats().absent, 2);
  EXPECT_EQ(table_->Stats().evicted, 98);
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(Subscription(i)->cancelled()) << i;
  EXPECT_TRUE(Subscription(6)->cancelled());
  EXPECT_FALSE(Subscription(105)->cancelled());
}

TEST_F(ServiceTableTest, TheServiceAskedForLeastRecently_MakesRoom) {
  options_.max_services = 8;
  Make();
  for (int i = 0; i < 7; ++i) {
    Look(absl::StrCat("s", i));
    Subscription(i)->Push(Snapshot({"a"}));
    Look(absl::StrCat("s", i));
    Look("s0");
  }
  EXPECT_FALSE(Subscription(0)->cancelled());
  EXPECT_TRUE(Subscription(1)->cancelled());
  EXPECT_EQ(table_->Stats().services, 6);
}

TEST_F(ServiceTableTest, NewNames_AreBoundedInTime) {
  options_.new_names_per_second = 10;
  Make();
  for (int i = 0; i < 30; ++i) Look(absl::StrCat("a", i));
  EXPECT_EQ(subscriptions(), 10u);
  EXPECT_EQ(table_->Stats().refused_names, 20);
  EXPECT_EQ(StateOf("a29"), State::kNothing);
  EXPECT_FALSE(Look("a29").wait) << "SERVFAIL at once";
  clock_.Advance(absl::Milliseconds(500));
  for (int i = 0; i < 30; ++i) Look(absl::StrCat("b", i));
  EXPECT_EQ(subscriptions(), 15u);
}

TEST_F(ServiceTableTest, NewNames_OfANetworkAreAQuarter) {
  options_.new_names_per_second = 40;
  Make();
  const auto ask = [&](const std::string& address, int count) {
    const size_t before = subscriptions();
    static int names = 0;
    for (int i = 0; i < count; ++i) Look(absl::StrCat("a", ++names), {address, true});
    return subscriptions() - before;
  };
  EXPECT_EQ(ask("\x0a\x01\x02\x03", 30), 10u);
  EXPECT_EQ(ask("\x0a\x01\x02\x04", 30), 0u) << "the same network";
  EXPECT_EQ(ask("\x0a\x01\x03\x03", 5), 5u) << "another";
  EXPECT_EQ(ask("", 100), 25u) << "the operator has what is left";
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ask("\x0a\x01\x02\x03", 30), 10u);
  // One that is followed needs none.
  EXPECT_TRUE(Look("a1", {"\x0a\x01\x02\x03", true}).wait);
}

TEST_F(ServiceTableTest, NewNames_OfForgedAddressesAreHalf) {
  options_.new_names_per_second = 40;
  Make();
  for (int i = 0; i < 100; ++i) Look(absl::StrCat("forged-", i), {"\x0a\x01\x02\x03", false});
  EXPECT_EQ(subscriptions(), 10u) << "one network";
  // Each from a network of its own.
  for (int i = 0; i < 100; ++i) {
    const std::string address = {10, static_cast<char>(i), 1, 1};
    Look(absl::StrCat("made-up-", i), {address, false});
  }
  EXPECT_EQ(subscriptions(), 20u);
  EXPECT_TRUE(Look("orders", {"\x0b\x01\x02\x03", true}).wait) << "a client by TCP is looked after";
}

TEST_F(ServiceTableTest, ItsEnd_EndsTheSubscriptions) {
  Look("a");
  Look("b");
  table_ = nullptr;
  EXPECT_TRUE(Subscription(0)->cancelled());
  EXPECT_TRUE(Subscription(1)->cancelled());
  EXPECT_FALSE(Subscription(0)->Push(Snapshot({"a"})));
}

}  // namespace
}  // namespace failback::dns
