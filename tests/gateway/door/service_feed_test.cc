// What is known of services, on simulated time: who waits is answered once, with what; who is not
// answered any more; how many services are followed.

#include "gateway/door/service_feed.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "retry/simulated_clock.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

SubscribeResponse Snapshot(const std::vector<std::string>& ids, uint64_t revision,
                           bool stale = false, uint64_t epoch = 1) {
  SubscribeResponse event;
  event.set_epoch(epoch);
  event.set_revision(revision);
  event.set_stale(stale);
  event.mutable_snapshot();
  for (const std::string& id : ids) *event.mutable_snapshot()->add_instances() = MakeInstance(id);
  return event;
}

SubscribeResponse Added(const std::string& id, uint64_t base, uint64_t revision) {
  SubscribeResponse event;
  event.set_epoch(1);
  event.set_revision(revision);
  event.mutable_delta()->set_base_revision(base);
  *event.mutable_delta()->add_upserts() = MakeInstance(id);
  return event;
}

class ServiceFeedTest : public ::testing::Test {
 protected:
  ServiceFeedTest() {
    options_.timer = timer_.get();
    options_.max_services = 3;
    feed_ = std::make_unique<ServiceFeed>(&registry_, options_);
  }

  using Answers = std::vector<absl::StatusOr<ServiceStatePtr>>;
  ServiceFeed::Waiter Wait(Answers* answers, const StatePosition& seen = {},
                           const std::string& service = "orders") {
    return feed_->WhenNewer(
        {"default", service}, seen,
        [answers](absl::StatusOr<ServiceStatePtr> state) { answers->push_back(std::move(state)); });
  }
  std::shared_ptr<FakeSubscription> Subscription(size_t index = 0) {
    return registry_.WaitForSubscription(index, absl::ZeroDuration());
  }

  SimulatedClock clock_;
  const std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_);
  FakeRegistry registry_;
  ServiceFeed::Options options_;
  std::unique_ptr<ServiceFeed> feed_;
};

TEST_F(ServiceFeedTest, TheFirstQuestionWaitsForTheRegistryAndTheNextDoesNot) {
  Answers first, second;
  EXPECT_FALSE(Wait(&first).done());
  EXPECT_TRUE(first.empty());
  Subscription()->Push(Snapshot({"1"}, 5));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ((*first[0])->set().size(), 1u);
  EXPECT_EQ((*first[0])->version(), 1u);
  EXPECT_TRUE(Wait(&second).done());
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(*second[0], *first[0]) << "the same state";
  EXPECT_EQ(registry_.subscriptions().size(), 1u);
}

TEST_F(ServiceFeedTest, WhoHasAStateIsAnsweredWithTheNextOnce) {
  Answers first;
  Wait(&first);
  Subscription()->Push(Snapshot({"1"}, 5));
  const StatePosition seen = (*first.at(0))->position();
  Answers next;
  EXPECT_FALSE(Wait(&next, seen).done());
  EXPECT_EQ(feed_->waiters(), 1);
  Subscription()->Push(Added("2", 5, 6));
  ASSERT_EQ(next.size(), 1u);
  const ServiceState& state = **next[0];
  EXPECT_EQ(state.set().size(), 2u);
  EXPECT_EQ(state.version(), 2u);
  EXPECT_EQ(state.previous(), seen);
  EXPECT_EQ(state.changes().upserts.size(), 1u);
  EXPECT_GT(state.index(), (*first[0])->index());
  EXPECT_LT(state.index(), uint64_t{1} << 53);
  Subscription()->Push(Added("3", 6, 7));
  EXPECT_EQ(next.size(), 1u);
  EXPECT_EQ(feed_->waiters(), 0);
}

TEST_F(ServiceFeedTest, ASnapshotThatChangesNothingWakesNobody) {
  Answers first, next;
  Wait(&first);
  Subscription()->Push(Snapshot({"1"}, 5));
  Wait(&next, (*first.at(0))->position());
  Subscription()->Push(Snapshot({"1"}, 9));
  EXPECT_TRUE(next.empty());
  Subscription()->Push(Snapshot({"1"}, 9, /*stale=*/true));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_TRUE((*next[0])->stale());
  EXPECT_EQ((*next[0])->version(), 1u) << "the set is the same";
}

TEST_F(ServiceFeedTest, ANewEpochCountsFromItsBeginning) {
  Answers first, next;
  Wait(&first);
  Subscription()->Push(Snapshot({"1"}, 500));
  Wait(&next, (*first.at(0))->position());
  Subscription()->Push(Snapshot({"1"}, 2, /*stale=*/false, /*epoch=*/2));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ((*next[0])->position().epoch, 2u);
}

TEST_F(ServiceFeedTest, WhoLeavesIsNotAnswered) {
  Answers gone;
  const ServiceFeed::Waiter waiter = Wait(&gone);
  waiter.Cancel();
  waiter.Cancel();
  EXPECT_EQ(feed_->waiters(), 0);
  Subscription()->Push(Snapshot({"1"}, 5));
  EXPECT_TRUE(gone.empty());
}

TEST_F(ServiceFeedTest, AnEndedSubscriptionIsStaleAndBeginsAgainWhereItWas) {
  Answers first, next;
  Wait(&first);
  Subscription()->Push(Snapshot({"1"}, 5));
  Wait(&next, (*first.at(0))->position());
  Subscription()->End(absl::UnavailableError("away"));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_TRUE((*next[0])->stale());
  EXPECT_EQ((*next[0])->set().size(), 1u);
  clock_.Advance(absl::Seconds(2));
  ASSERT_NE(Subscription(1), nullptr);
  EXPECT_EQ(registry_.subscriptions().at(1)->request().revision(), 5u);
}

TEST_F(ServiceFeedTest, WhatIsDeniedIsSaidAndTriedAgain) {
  Answers denied, again;
  Wait(&denied);
  const absl::Status why = Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED, "no");
  Subscription()->End(why);
  ASSERT_EQ(denied.size(), 1u);
  EXPECT_EQ(denied[0].status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Wait(&again).done());
  EXPECT_FALSE(again.at(0).ok());
  clock_.Advance(absl::Seconds(6));
  ASSERT_NE(Subscription(1), nullptr);
  Subscription(1)->Push(Snapshot({"1"}, 5));
  Wait(&again);
  EXPECT_TRUE(again.at(1).ok());
}

TEST_F(ServiceFeedTest, TheLeastAskedForMakesRoomUnlessAClientWaitsForIt) {
  Answers waits, other;
  Wait(&waits, {}, "waited-for");
  for (const char* service : {"a", "b", "c", "d"}) {
    Answers answers;
    const ServiceFeed::Waiter waiter = Wait(&answers, {}, service);
    waiter.Cancel();
  }
  EXPECT_EQ(feed_->services(), 3);
  EXPECT_TRUE(waits.empty());
  Wait(&other, {}, "x");
  Wait(&other, {}, "y");
  EXPECT_TRUE(other.empty());
  Answers refused;
  Wait(&refused, {}, "one-too-many");
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(ReasonOf(refused[0].status()), registry::v1::ERROR_REASON_OVERLOADED);
  feed_->Stop();  // it answers those who wait still, while there is where to
}

TEST_F(ServiceFeedTest, WhatNobodyAsksForIsNotFollowedAnyMore) {
  Answers answers;
  Wait(&answers);
  Subscription()->Push(Snapshot({"1"}, 5));
  EXPECT_EQ(feed_->services(), 1);
  for (int i = 0; i < 25; ++i) clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(feed_->services(), 0);
}

TEST_F(ServiceFeedTest, StopAnswersAllWhoWait) {
  Answers answers;
  Wait(&answers);
  feed_->Stop();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].status().code(), absl::StatusCode::kUnavailable);
  Wait(&answers, {}, "another");
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_FALSE(answers[1].ok());
}

TEST_F(ServiceFeedTest, WhatIsRenderedIsMadeOnce) {
  Answers answers;
  Wait(&answers);
  Subscription()->Push(Snapshot({"1"}, 5));
  int made = 0;
  const auto render = [&] { return absl::StrCat(++made); };
  const ServiceState& state = **answers.at(0);
  EXPECT_EQ(state.Rendered("a", render), state.Rendered("a", render));
  EXPECT_EQ(*state.Rendered("b", render), "2");
}

}  // namespace
}  // namespace failback
