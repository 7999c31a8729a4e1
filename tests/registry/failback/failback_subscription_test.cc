// Subscriptions of FailbackRegistry: many local subscribers, one stream at the upstream.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "registry/refusable_listener.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

class FailbackSubscriptionTest : public FailbackTest {
 protected:
  std::shared_ptr<RecordingListener> listener_ = std::make_shared<RecordingListener>();
};

TEST_F(FailbackSubscriptionTest, ManySubscribersShareOneStream) {
  Start();
  auto other = std::make_shared<RecordingListener>();
  auto stream = Subscribe(listener_);
  ASSERT_EQ(fake_->subscriptions().size(), 1);
  EXPECT_EQ(fake_->subscriptions()[0]->request().session_id(), "session-of-inc");
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  ASSERT_EQ(listener_->events().size(), 1);
  auto second = Subscribe(other);
  EXPECT_EQ(fake_->subscriptions().size(), 1);
  ASSERT_EQ(other->events().size(), 1) << "what is known comes at once";
  EXPECT_EQ(other->events()[0]->revision(), 5);
  EXPECT_EQ(other->events()[0]->snapshot().instances_size(), 1);
  fake_->subscriptions()[0]->Push(DeltaEvent(5, 6, {MakeInstance("b")}));
  EXPECT_EQ(listener_->events().size(), 2);
  EXPECT_EQ(other->events().size(), 2);
  stream.reset();
  EXPECT_EQ(fake_->unsubscribes.request_count(), 0) << "one is left";
  second.reset();
  ASSERT_EQ(fake_->unsubscribes.request_count(), 1);
  EXPECT_TRUE(fake_->subscriptions()[0]->cancelled());
  EXPECT_GT(fake_->unsubscribes.last_request().generation(),
            fake_->subscriptions()[0]->request().generation());
  EXPECT_EQ(registry_->Pending().size(), 0);
}

// A handle that is destroyed within a callback silences its listener also where the event that led
// there was already on its way to it.
TEST_F(FailbackSubscriptionTest, NothingIsHeardAfterTheStreamWasDestroyedInAnothersCallback) {
  Start();
  auto other = std::make_shared<RecordingListener>();
  std::unique_ptr<SubscribeStream> second;
  auto first =
      Subscribe(std::make_shared<RecordingListener>([&](const MessagePtr&) { second.reset(); }));
  second = Subscribe(other);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(other->events().size(), 0);
}

// Says something on the stream that a new one is about to replace.
class LateRegistry final : public FakeRegistry {
 public:
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override {
    for (const auto& subscription : subscriptions()) subscription->Push(late);
    return FakeRegistry::Subscribe(request, std::move(listener));
  }
  SubscribeResponse late;
};

TEST_F(FailbackSubscriptionTest, WhatAnOlderStreamStillSaysIsNotHeard) {
  auto late = std::make_unique<LateRegistry>();
  late->late = SnapshotEvent(90, {MakeInstance("x"), MakeInstance("y")});
  fake_ = late.get();
  upstream_ = std::move(late);
  Back("session-1");
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  // In a new session the stream is opened again, and the old one goes when that has been asked for.
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  ASSERT_EQ(fake_->subscriptions().size(), 2);
  EXPECT_EQ(fake_->subscriptions()[1]->request().revision(), 5);
  EXPECT_EQ(registry_->Pending().size(), 1) << "the new stream has not said anything";
  fake_->subscriptions()[1]->Push(DeltaEvent(5, 6, {MakeInstance("b")}));
  EXPECT_EQ(registry_->Pending().size(), 0);
  for (const auto& event : listener_->events()) EXPECT_LT(event->revision(), 90);
  EXPECT_EQ(listener_->events().back()->revision(), 6);
}

TEST_F(FailbackSubscriptionTest, SelectorsThatMeanTheSameShareAStream) {
  Start();
  SubscribeRequest spelled;
  spelled.mutable_selector()->set_service("orders");
  spelled.mutable_selector()->set_namespace_("default");
  auto one = Subscribe(listener_);
  auto two = registry_->Subscribe(spelled, std::make_shared<RecordingListener>());
  EXPECT_EQ(fake_->subscriptions().size(), 1);
}

TEST_F(FailbackSubscriptionTest, ABrokenStreamIsOpenedAgainWhereItBrokeOff) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  fake_->subscriptions()[0]->End(absl::InternalError("broken"));
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].kind(), agent::v1::OPERATION_KIND_SUBSCRIBE);
  EXPECT_EQ(registry_->Pending()[0].selector().service(), "orders");
  Advance(absl::Milliseconds(500));
  ASSERT_EQ(fake_->subscriptions().size(), 2);
  EXPECT_EQ(fake_->subscriptions()[1]->request().revision(), 5);
  EXPECT_EQ(fake_->subscriptions()[1]->request().epoch(), 1);
  fake_->subscriptions()[1]->Push(DeltaEvent(5, 5, {}));
  EXPECT_EQ(listener_->events().size(), 1) << "nothing has changed";
  EXPECT_FALSE(listener_->end().has_value());
}

TEST_F(FailbackSubscriptionTest, ANewSessionSubscribesAnew) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  ASSERT_EQ(fake_->subscriptions().size(), 2);
  EXPECT_TRUE(fake_->subscriptions()[0]->cancelled());
  EXPECT_EQ(fake_->subscriptions()[1]->request().session_id(), "session-2");
}

TEST_F(FailbackSubscriptionTest, StaleAfterTheGraceAndFreshAgainAfter) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  GoAway();
  fake_->subscriptions()[0]->End(Away());
  Advance(absl::Milliseconds(999));
  EXPECT_EQ(listener_->events().size(), 1);
  Advance(absl::Milliseconds(1));
  ASSERT_EQ(listener_->events().size(), 2);
  EXPECT_TRUE(listener_->events()[1]->stale());
  Advance(absl::Minutes(5));
  EXPECT_EQ(listener_->events().size(), 2) << "told once";
  auto late = std::make_shared<RecordingListener>();
  auto other = Subscribe(late);
  ASSERT_EQ(late->events().size(), 1);
  EXPECT_TRUE(late->events()[0]->stale());
  EXPECT_EQ(late->events()[0]->snapshot().instances_size(), 1);
  Back("session-of-inc");
  Advance(absl::Seconds(2));
  fake_->subscriptions().back()->Push(DeltaEvent(5, 5, {}));
  ASSERT_EQ(listener_->events().size(), 3);
  EXPECT_FALSE(listener_->events()[2]->stale());
  EXPECT_FALSE(listener_->events()[2]->has_snapshot());
}

TEST_F(FailbackSubscriptionTest, StaleAlsoWhileTheStreamOfAnUpstreamThatIsAwayLooksOpen) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  // A black hole: the stream does not end, renewals get no answer.
  fake_->keep_alives.AnswerWith([](const auto&) { return Away(); });
  fake_->opens.AnswerWith([](const auto&) { return Away(); });
  Advance(absl::Seconds(4));  // a renewal at a third of the TTL, and the grace
  EXPECT_EQ(listener_->events().size(), 1);
  Advance(absl::Seconds(1));
  ASSERT_EQ(listener_->events().size(), 2);
  EXPECT_TRUE(listener_->events()[1]->stale());
  Back();
  fake_->opens.AnswerWith([](const auto&) { return Opened("session-of-inc", "fake-store"); });
  Advance(absl::Seconds(2));
  ASSERT_EQ(listener_->events().size(), 3) << "the stream has outlived it";
  EXPECT_FALSE(listener_->events()[2]->stale());
  EXPECT_EQ(fake_->subscriptions().size(), 1);
}

TEST_F(FailbackSubscriptionTest, AStreamOfALostSessionIsNotFreshBeforeTheNextOneSpeaks) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  fake_->keep_alives.AnswerWith([](const auto&) { return Away(); });
  fake_->opens.AnswerWith([](const auto&) { return Away(); });
  Advance(absl::Seconds(5));
  ASSERT_EQ(listener_->events().size(), 2);
  fake_->keep_alives.AnswerWith([](const auto&) { return SessionUnknown(); });
  fake_->opens.AnswerWith([](const auto&) { return Opened("session-2", "fake-store"); });
  Advance(absl::Seconds(2));
  ASSERT_EQ(fake_->subscriptions().size(), 2) << "opened again";
  EXPECT_EQ(listener_->events().size(), 2) << "still stale";
  fake_->subscriptions()[1]->Push(DeltaEvent(5, 5, {}));
  ASSERT_EQ(listener_->events().size(), 3);
  EXPECT_FALSE(listener_->events()[2]->stale());
}

TEST_F(FailbackSubscriptionTest, AStreamThatSpeaksWhileRenewalsFailIsNotMarkedStaleAgain) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  fake_->keep_alives.AnswerWith([](const auto&) { return Away(); });
  fake_->opens.AnswerWith([](const auto&) { return Away(); });
  Advance(absl::Seconds(5));
  ASSERT_EQ(listener_->events().size(), 2);
  fake_->subscriptions()[0]->Push(DeltaEvent(5, 6, {MakeInstance("b")}));
  ASSERT_EQ(listener_->events().size(), 3);
  EXPECT_FALSE(listener_->events()[2]->stale());
  Advance(absl::Minutes(1));
  EXPECT_EQ(listener_->events().size(), 3);
}

TEST_F(FailbackSubscriptionTest, Rule5_ARefusedSubscribeIsParkedToldAndReArmed) {
  Start();
  fake_->EndSubscriptionsWith(absl::PermissionDeniedError("not for you"));
  auto stream = Subscribe(listener_);
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
  EXPECT_EQ(registry_->Pending()[0].last_status().message(), "not for you");
  EXPECT_EQ(registry_->Pending()[0].kind(), agent::v1::OPERATION_KIND_SUBSCRIBE);
  EXPECT_THAT(EventNames(), testing::ElementsAre("parked subscribe default/orders#1"));
  Advance(absl::Minutes(10));
  EXPECT_EQ(fake_->subscriptions().size(), 1) << "not tried again by itself";
  EXPECT_FALSE(listener_->end().has_value()) << "the subscriber is kept";
  fake_->EndSubscriptionsWith(std::nullopt);
  EXPECT_EQ(*registry_->Retry({}), 1);
  ASSERT_EQ(fake_->subscriptions().size(), 2);
  fake_->subscriptions()[1]->Push(SnapshotEvent(1, {MakeInstance("a")}));
  EXPECT_EQ(listener_->events().size(), 1);
  EXPECT_EQ(registry_->Pending().size(), 0);
}

class LookingListener final : public RecordingListener, public RefusableListener {
 public:
  bool ends_when_refused() const override { return true; }
};

TEST_F(FailbackSubscriptionTest, OneThatEndsWhenRefused_IsNoParkedIntent) {
  Start();
  fake_->EndSubscriptionsWith(absl::PermissionDeniedError("not for you"));
  auto refused = std::make_shared<LookingListener>();
  auto stream = Subscribe(refused);
  EXPECT_EQ(refused->end(), absl::PermissionDeniedError("not for you"));
  EXPECT_EQ(registry_->Pending().size(), 0);
  CheckInvariants();
  // Later it is allowed, and then no more.
  fake_->EndSubscriptionsWith(std::nullopt);
  auto ended = std::make_shared<LookingListener>();
  stream = Subscribe(ended);
  fake_->subscriptions().back()->Push(SnapshotEvent(1, {MakeInstance("a")}));
  EXPECT_EQ(ended->events().size(), 1);
  fake_->EndSubscriptionsWith(absl::PermissionDeniedError("no more"));
  fake_->subscriptions().back()->End(absl::PermissionDeniedError("no more"));
  EXPECT_EQ(ended->end(), absl::PermissionDeniedError("no more"));
  EXPECT_EQ(registry_->Pending().size(), 0);
  CheckInvariants();
}

TEST_F(FailbackSubscriptionTest, OneThatEndsWhenRefused_BesideOneThatStays) {
  Start();
  fake_->EndSubscriptionsWith(absl::PermissionDeniedError("not for you"));
  auto stays = Subscribe(listener_);
  auto late = std::make_shared<LookingListener>();
  auto stream = Subscribe(late);
  EXPECT_EQ(late->end(), absl::PermissionDeniedError("not for you"));
  EXPECT_FALSE(listener_->end().has_value());
  EXPECT_EQ(fake_->subscriptions().size(), 1) << "the refusal is known";
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
  CheckInvariants();
}

// What may pass is no refusal.
TEST_F(FailbackSubscriptionTest, OneThatEndsWhenRefused_StaysInAnOutage) {
  options_.retry.retry_times = 0;
  Start();
  fake_->EndSubscriptionsWith(absl::UnavailableError("away"));
  auto listener = std::make_shared<LookingListener>();
  auto stream = Subscribe(listener);
  EXPECT_FALSE(listener->end().has_value());
  EXPECT_EQ(registry_->Pending().size(), 1);
}

TEST_F(FailbackSubscriptionTest, Rule6_AParkedSubscribeIsReArmedByAReconnectAndByASecondOne) {
  Start();
  fake_->EndSubscriptionsWith(absl::PermissionDeniedError("not for you"));
  auto stream = Subscribe(listener_);
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  EXPECT_EQ(fake_->subscriptions().size(), 2) << "a new session";
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
}

TEST_F(FailbackSubscriptionTest, Rule5_ARefusedSubscribeThatMayPassLaterIsOnTheWheel) {
  options_.retry.retry_times = 2;
  options_.retry.retry_period = absl::Seconds(1);
  Start();
  for (const absl::Status& status :
       {absl::UnauthenticatedError("expired"), absl::InternalError("broken"),
        WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED, "busy"), absl::Seconds(1))}) {
    fake_->EndSubscriptionsWith(status);
    const size_t before = fake_->subscriptions().size();
    auto stream = Subscribe(std::make_shared<RecordingListener>());
    ASSERT_EQ(registry_->Pending().size(), 1);
    EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_WAITING) << status;
    Advance(absl::Seconds(10));
    EXPECT_EQ(fake_->subscriptions().size(), before + 3) << "retry_times retries follow";
    EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
    CheckInvariants();
    stream.reset();
    Advance(absl::Seconds(1));
  }
}

TEST_F(FailbackSubscriptionTest, AShortOutageIsNotToldAtAll) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  fake_->subscriptions()[0]->End(absl::InternalError("hiccup"));
  Advance(absl::Milliseconds(600));
  fake_->subscriptions().back()->Push(DeltaEvent(5, 5, {}));
  Advance(absl::Minutes(1));
  EXPECT_EQ(listener_->events().size(), 1);
}

TEST_F(FailbackSubscriptionTest, AnEmptySnapshotAfterAnEmptyRegistryIsHeldAndThenBelieved) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  fake_->subscriptions()[0]->Push(SnapshotEvent(1, {}, /*epoch=*/2));
  ASSERT_EQ(listener_->events().size(), 2);
  EXPECT_TRUE(listener_->events()[1]->stale());
  Advance(absl::Milliseconds(4999));
  EXPECT_EQ(listener_->events().size(), 2);
  Advance(absl::Milliseconds(1));
  ASSERT_EQ(listener_->events().size(), 3);
  EXPECT_EQ(listener_->events()[2]->snapshot().instances_size(), 0);
  EXPECT_EQ(listener_->events()[2]->epoch(), 2);
}

TEST_F(FailbackSubscriptionTest, AnEmptySnapshotIsNotBelievedWhileTheRegistryIsAway) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  fake_->subscriptions()[0]->Push(SnapshotEvent(1, {}, /*epoch=*/2));
  GoAway();
  fake_->subscriptions()[0]->End(Away());
  Advance(absl::Minutes(1));
  EXPECT_EQ(listener_->events().size(), 2) << "held all the while";
  Back("session-of-inc");
  Advance(absl::Seconds(2));
  fake_->subscriptions().back()->Push(DeltaEvent(1, 2, {MakeInstance("a")}, {}, 2));
  ASSERT_EQ(listener_->events().size(), 3);
  EXPECT_EQ(listener_->events()[2]->snapshot().instances_size(), 1);
}

TEST_F(FailbackSubscriptionTest, AGapSubscribesAnewWithoutAPosition) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  fake_->subscriptions()[0]->Push(DeltaEvent(7, 8, {MakeInstance("b")}));
  EXPECT_EQ(listener_->events().size(), 1) << "nothing is stored before it is checked";
  Advance(absl::Milliseconds(500));
  ASSERT_EQ(fake_->subscriptions().size(), 2);
  EXPECT_EQ(fake_->subscriptions()[1]->request().revision(), 0);
  fake_->subscriptions()[1]->Push(SnapshotEvent(8, {MakeInstance("a"), MakeInstance("b")}));
  ASSERT_EQ(listener_->events().size(), 2);
  EXPECT_EQ(listener_->events()[1]->delta().upserts_size(), 1);
  EXPECT_EQ(listener_->events()[1]->delta().base_revision(), 5);
}

TEST_F(FailbackSubscriptionTest, UnsubscribeHasItsOwnRetryTask) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {}));
  fake_->unsubscribes.Answer(absl::InternalError("no"));
  stream.reset();
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].kind(), agent::v1::OPERATION_KIND_UNSUBSCRIBE);
  Advance(absl::Seconds(1));
  EXPECT_EQ(fake_->unsubscribes.request_count(), 2);
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackSubscriptionTest, SubscribingAgainWhileTheUnsubscribeIsOwedWins) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {}));
  fake_->unsubscribes.Hold();
  stream.reset();
  auto again = Subscribe(std::make_shared<RecordingListener>());
  EXPECT_EQ(fake_->subscriptions().size(), 1) << "the unsubscribe is in flight";
  fake_->unsubscribes.Release();
  ASSERT_EQ(fake_->subscriptions().size(), 2);
  EXPECT_GT(fake_->subscriptions()[1]->request().generation(),
            fake_->unsubscribes.last_request().generation());
}

TEST_F(FailbackSubscriptionTest, NoCallbackAfterTheStreamIsDestroyed) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {}));
  stream.reset();
  fake_->subscriptions()[0]->Push(DeltaEvent(5, 6, {MakeInstance("a")}));
  EXPECT_EQ(listener_->events().size(), 1);
  EXPECT_FALSE(listener_->end().has_value());
}

TEST_F(FailbackSubscriptionTest, AListenerMayDestroyItsOwnStream) {
  Start();
  std::unique_ptr<SubscribeStream> stream;
  auto listener = std::make_shared<RecordingListener>([&](const auto&) { stream.reset(); });
  stream = Subscribe(listener);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {}));
  EXPECT_EQ(listener->events().size(), 1);
  EXPECT_EQ(fake_->unsubscribes.request_count(), 1);
}

TEST_F(FailbackSubscriptionTest, AListenerMayDestroyTheRegistry) {
  Start();
  auto listener = std::make_shared<RecordingListener>([&](const auto&) { registry_.reset(); });
  auto stream = Subscribe(listener);
  const auto subscription = fake_->subscriptions()[0];
  subscription->Push(SnapshotEvent(5, {}));
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(FailbackSubscriptionTest, AListenerThatThrowsHurtsNobody) {
  Start();
  auto thrower = std::make_shared<RecordingListener>(
      [](const auto&) { throw std::runtime_error("listener"); });
  auto one = Subscribe(thrower);
  auto two = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {}));
  fake_->subscriptions()[0]->Push(DeltaEvent(5, 6, {MakeInstance("a")}));
  EXPECT_EQ(thrower->events().size(), 2);
  EXPECT_EQ(listener_->events().size(), 2);
}

TEST_F(FailbackSubscriptionTest, UnsubscribeByNameEndsTheStreamAndRefusesALateSubscribe) {
  Start();
  const std::string session = OpenLocal("app");
  auto stream = Subscribe(listener_, "orders", session, "sub", 1);
  UnsubscribeRequest request;
  request.set_session_id(session);
  request.set_subscription_id("sub");
  request.set_generation(2);
  Answer<UnsubscribeResponse> answer;
  registry_->Unsubscribe(request, answer.Catch());
  EXPECT_TRUE(answer.get().ok());
  ASSERT_TRUE(listener_->end().has_value());
  EXPECT_TRUE(listener_->end()->ok());
  auto late = std::make_shared<RecordingListener>();
  auto refused = Subscribe(late, "orders", session, "sub", 1);
  ASSERT_TRUE(late->end().has_value());
  EXPECT_EQ(ReasonOf(*late->end()), registry::v1::ERROR_REASON_SUPERSEDED);
  auto higher = std::make_shared<RecordingListener>();
  auto taken = Subscribe(higher, "orders", session, "sub", 3);
  EXPECT_FALSE(higher->end().has_value());
  Answer<UnsubscribeResponse> again;
  registry_->Unsubscribe(request, again.Catch());
  EXPECT_EQ(ReasonOf(again.get().status()), registry::v1::ERROR_REASON_SUPERSEDED)
      << "generation 2 is older than the subscription that is there";
  EXPECT_FALSE(higher->end().has_value());
}

TEST_F(FailbackSubscriptionTest, ASecondSubscribeWithTheSameNameReplacesTheFirst) {
  Start();
  const std::string session = OpenLocal("app");
  auto one = Subscribe(listener_, "orders", session, "sub", 1);
  auto other = std::make_shared<RecordingListener>();
  auto two = Subscribe(other, "orders", session, "sub", 2);
  ASSERT_TRUE(listener_->end().has_value());
  EXPECT_EQ(ReasonOf(*listener_->end()), registry::v1::ERROR_REASON_REPLACED);
  EXPECT_FALSE(other->end().has_value());
}

TEST_F(FailbackSubscriptionTest, ALocalSessionsEndEndsItsSubscriptions) {
  Start();
  const std::string session = OpenLocal("app", 10);
  auto stream = Subscribe(listener_, "orders", session, "sub", 1);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {}));
  Advance(absl::Seconds(11));
  ASSERT_TRUE(listener_->end().has_value());
  EXPECT_EQ(ReasonOf(*listener_->end()), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_EQ(fake_->unsubscribes.request_count(), 1);
}

TEST_F(FailbackSubscriptionTest, DrainEndsSubscribersAndLeavesTheRestToTheSession) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {}));
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(5), drained.Catch());
  EXPECT_TRUE(drained.done());
  EXPECT_EQ(ReasonOf(*listener_->end()), registry::v1::ERROR_REASON_SHUTTING_DOWN);
  EXPECT_TRUE(fake_->subscriptions()[0]->cancelled());
}

TEST_F(FailbackSubscriptionTest, OurOwnNumbersThatWentBackDoNotLoseASubscription) {
  Start();
  fake_->EndSubscriptionsWith(
      Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "older", {{"generation", "50"}}));
  auto stream = Subscribe(listener_);
  fake_->EndSubscriptionsWith(std::nullopt);
  Advance(absl::Seconds(2));
  EXPECT_GT(fake_->subscriptions().back()->request().generation(), 50);
  fake_->subscriptions().back()->Push(SnapshotEvent(5, {}));
  EXPECT_EQ(listener_->events().size(), 1);
  EXPECT_FALSE(listener_->end().has_value());
}

TEST_F(FailbackSubscriptionTest, AStreamReplacedByAnotherIsTakenBackAndNotDropped) {
  Start();
  auto stream = Subscribe(listener_);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {}));
  fake_->subscriptions()[0]->End(Refusal(registry::v1::ERROR_REASON_REPLACED, "another took over"));
  EXPECT_FALSE(listener_->end().has_value());
  Advance(absl::Seconds(1));
  EXPECT_EQ(fake_->subscriptions().size(), 2);
}

TEST_F(FailbackSubscriptionTest, StreamsThatSayNothingDoNotHoldUpRegistrations) {
  options_.max_calls_in_flight = 2;
  Start();
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  streams.reserve(4);
  for (int i = 0; i < 4; ++i) streams.push_back(Subscribe(listener_, absl::StrCat("s", i)));
  EXPECT_EQ(fake_->subscriptions().size(), 2);
  Register("a");
  EXPECT_EQ(fake_->registers.request_count(), 0) << "the window is full";
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->subscriptions().size(), 4);
  EXPECT_EQ(registry_->Pending().size(), 4);
  fake_->subscriptions()[0]->Push(SnapshotEvent(1, {}));
  EXPECT_EQ(registry_->Pending().size(), 3);
}

TEST_F(FailbackSubscriptionTest, AStreamThatSaysNothingIsOpenedAnewAfterALoss) {
  Start();
  auto stream = Subscribe(listener_);
  GoAway();
  Advance(absl::Seconds(5));
  Back("session-of-inc");
  Advance(absl::Seconds(2));
  ASSERT_EQ(fake_->subscriptions().size(), 2);
  EXPECT_TRUE(fake_->subscriptions()[0]->cancelled());
}

TEST_F(FailbackSubscriptionTest, CancelOfAPendingSubscribeEndsItsSubscribers) {
  GoAway();
  Start();
  auto stream = Subscribe(listener_);
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(*registry_->Cancel({registry_->Pending()[0].id()}), 1);
  EXPECT_EQ(listener_->end()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackSubscriptionTest, ABadSelectorEndsTheStreamAtOnce) {
  Start();
  SubscribeRequest request;
  request.mutable_selector()->set_service("a b");
  auto stream = registry_->Subscribe(request, listener_);
  ASSERT_TRUE(listener_->end().has_value());
  EXPECT_EQ(ReasonOf(*listener_->end()), registry::v1::ERROR_REASON_INVALID_FIELD);
}

}  // namespace
}  // namespace failback
