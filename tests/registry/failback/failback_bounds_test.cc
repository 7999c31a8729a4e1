// The rules of the failback core about bounds and ends (10 to 15), and what stands around them:
// waiting for an acknowledgement, the operator's view, listings.

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "registry/failback/merged_pages.h"
#include "registry/model/validation.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/owned_subscriber.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACCEPTED;
using registry::v1::INTENT_STATE_ACKNOWLEDGED;

class FailbackBoundsTest : public FailbackTest {
 protected:
  // Opens a local session of `owner`, or resumes the one of that incarnation.
  absl::StatusOr<OpenSessionResponse> OpenOf(const std::string& owner,
                                             const std::string& incarnation, int ttl_seconds = 10) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.set_owner(owner);
    request.mutable_ttl()->set_seconds(ttl_seconds);
    Answer<OpenSessionResponse> answer;
    registry_->OpenSession(request, answer.Catch());
    return answer.get();
  }
};

// --- Rule 10.

TEST_F(FailbackBoundsTest, Rule10_ThousandsGoInBatchesAndTheWindowIsKept) {
  options_.max_calls_in_flight = 4;
  options_.max_batch = 100;
  Start();
  fake_->registers.Hold();
  for (int call = 0; call < 5; ++call) {
    std::vector<ServiceInstance> instances;
    for (int i = 0; i < 1000; ++i) instances.push_back(MakeInstance(absl::StrCat(call, "-", i)));
    Register(MakeRegister(instances));
  }
  size_t peak = 0, answered = 0;
  std::set<std::string> keys;
  while (fake_->registers.held_count() > 0) {
    peak = std::max(peak, fake_->registers.held_count());
    const RegisterRequest request = fake_->registers.requests()[answered++];
    EXPECT_LE(request.registrations_size(), 100);
    RegisterResponse response;
    for (const auto& r : request.registrations()) {
      EXPECT_TRUE(keys.insert(r.instance().key().instance_id()).second) << "sent twice";
      response.add_results();
    }
    fake_->registers.Complete(response);
    CheckInvariants();
  }
  EXPECT_EQ(peak, 4);
  EXPECT_EQ(keys.size(), 5000);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 5000);
}

TEST_F(FailbackBoundsTest, Rule10_KindsThatAlternateStillTravelInBatches) {
  Start();
  fake_->registers.Hold();
  fake_->unregisters.Hold();
  options_.max_calls_in_flight = 8;
  GoAway();
  Back();
  for (int i = 0; i < 500; ++i) {
    Register(absl::StrCat("r", i));
    Unregister(absl::StrCat("u", i));
  }
  fake_->registers.Release();
  fake_->unregisters.Release();
  EXPECT_EQ(registry_->Pending().size(), 0);
  EXPECT_LT(fake_->registers.request_count() + fake_->unregisters.request_count(), 20);
}

TEST_F(FailbackBoundsTest, Rule10_TheServersRetryDelayIsHonoured) {
  Start();
  fake_->registers.Answer(WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED, "busy"),
                                         absl::Milliseconds(1234)));
  Register("a");
  Advance(absl::Milliseconds(1233));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->registers.request_count(), 2);
}

TEST_F(FailbackBoundsTest, Rule10_TheRegistrysBatchLimitIsKept) {
  fake_->opens.AnswerWith([](const auto&) {
    OpenSessionResponse response = Opened("s");
    response.mutable_limits()->set_max_batch(7);
    return response;
  });
  Start();
  std::vector<ServiceInstance> instances;
  for (int i = 0; i < 100; ++i) instances.push_back(MakeInstance(absl::StrCat(i)));
  Register(MakeRegister(instances));
  for (const auto& request : fake_->registers.requests()) {
    EXPECT_LE(request.registrations_size(), 7);
  }
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 100);
}

// --- Rule 12.

TEST_F(FailbackBoundsTest, Rule12_DrainLetsOwedUnregistersFinishAndClosesTheSession) {
  Start();
  Register("a");
  Register("b");
  fake_->unregisters.Hold();
  Unregister("b");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  EXPECT_FALSE(drained.done());
  EXPECT_EQ(fake_->closes.request_count(), 0) << "an unregister is still owed";
  fake_->unregisters.Release();
  EXPECT_EQ(fake_->closes.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 1) << "drain writes no tombstones";
  ASSERT_TRUE(drained.done());
  EXPECT_EQ(drained.get()->unregistered(), 1);
  EXPECT_EQ(drained.get()->remaining(), 0);
  EXPECT_TRUE(registry_->draining());
}

TEST_F(FailbackBoundsTest, Rule12_DrainClosesTheSessionWhenTheCallsInFlightHaveEnded) {
  Start();
  fake_->registers.Hold();
  Register("a");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  EXPECT_EQ(fake_->closes.request_count(), 0) << "the call could land after the session's end";
  fake_->registers.Release();
  EXPECT_EQ(fake_->closes.request_count(), 1);
  EXPECT_TRUE(drained.done());
}

TEST_F(FailbackBoundsTest, Rule12_DrainTakesNoNewIntents) {
  Start();
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  EXPECT_EQ(ReasonOf(Register("a").get().status()), registry::v1::ERROR_REASON_DRAINING);
  const auto listener = std::make_shared<RecordingListener>();
  const auto stream = Subscribe(listener);
  ASSERT_TRUE(listener->end().has_value());
  EXPECT_EQ(ReasonOf(*listener->end()), registry::v1::ERROR_REASON_DRAINING);
}

TEST_F(FailbackBoundsTest, Rule12_OneWaitsForADrainAtATime) {
  Start();
  fake_->closes.Hold();
  Answer<agent::v1::DrainResponse> drained, again;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  registry_->Drain(absl::Seconds(10), again.Catch());
  EXPECT_EQ(ReasonOf(again.get().status()), registry::v1::ERROR_REASON_DRAINING);
  EXPECT_FALSE(drained.done());
  fake_->closes.Release();
  EXPECT_TRUE(drained.done());
}

TEST_F(FailbackBoundsTest, Rule12_DrainDoesNotWaitForWhatIsParked) {
  Start();
  Register("a");
  fake_->unregisters.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  Unregister("a");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  ASSERT_TRUE(drained.done()) << "nobody is there to re-arm it";
  EXPECT_EQ(drained.get()->remaining(), 0);
}

TEST_F(FailbackBoundsTest, Rule12_TheEndOfTheSessionCoversWhatIsParked) {
  Start();
  ServiceInstance stays = MakeInstance("stays");
  stays.set_persistent(true);
  Register(MakeRegister({MakeInstance("x1"), MakeInstance("x2"), stays}));
  fake_->registers.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  fake_->unregisters.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  Unregister("x1");
  Unregister("stays");
  Register("x2", 8081);
  Register("never");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  EXPECT_EQ(fake_->closes.request_count(), 1);
  EXPECT_EQ(drained.get()->unregistered(), 2) << "both went with the session";
  EXPECT_EQ(drained.get()->remaining(), 1) << "one outlives it, though it was to go";
  EXPECT_EQ(drained.get()->persistent(), 0);
}

TEST_F(FailbackBoundsTest, Rule12_WhatTheRegistryNeverTookCountsNowhere) {
  fake_->registers.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  Start();
  Register("denied");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  EXPECT_EQ(drained.get()->unregistered(), 0);
  EXPECT_EQ(drained.get()->remaining(), 0);
}

TEST_F(FailbackBoundsTest, Rule12_WhatMayHaveReachedTheRegistryRemains) {
  fake_->registers.AnswerWith([](const auto&) { return absl::DeadlineExceededError("late"); });
  fake_->closes.Hold();
  Start();
  Register("a");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  Advance(absl::Seconds(1));
  EXPECT_EQ(drained.get()->remaining(), 1);
}

TEST_F(FailbackBoundsTest, Rule12_ADrainIsCompletedAfterItsDeadline) {
  Start();
  ServiceInstance stays = MakeInstance("stays");
  stays.set_persistent(true);
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b"), stays}));
  fake_->closes.Hold();
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  Advance(absl::Seconds(2));
  EXPECT_EQ(drained.get()->remaining(), 2);
  EXPECT_EQ(drained.get()->persistent(), 1);
  Answer<agent::v1::DrainResponse> again;
  registry_->Drain(absl::Seconds(10), again.Catch());
  EXPECT_FALSE(again.done()) << "it may yet come to its end";
  fake_->closes.Complete(SessionUnknown());  // the first of them was applied late
  ASSERT_TRUE(again.done());
  EXPECT_EQ(again.get()->unregistered(), 2);
  EXPECT_EQ(again.get()->remaining(), 0);
  EXPECT_EQ(again.get()->persistent(), 1);
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 0);
  Answer<agent::v1::DrainResponse> later;
  registry_->Drain(absl::Seconds(10), later.Catch());
  EXPECT_EQ(later.get()->unregistered(), 2);
}

TEST_F(FailbackBoundsTest, Rule12_ASessionThatEndsAfterTheDeadlineIsNoLongerShown) {
  Start();
  Register("a");
  fake_->registers.Hold();
  Register("late");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  Advance(absl::Seconds(2));
  EXPECT_EQ(drained.get()->remaining(), 2);
  EXPECT_EQ(fake_->closes.request_count(), 0) << "a call is in flight";
  fake_->registers.Release();
  EXPECT_EQ(fake_->closes.request_count(), 1) << "a drained agent keeps no session";
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
}

TEST_F(FailbackBoundsTest, Rule12_DrainLeavesPersistentInstancesAndCountsThemByThemselves) {
  Start();
  ServiceInstance stays = MakeInstance("stays");
  stays.set_persistent(true);
  Register(MakeRegister({stays, MakeInstance("goes")}));
  // One that the registry does not have is not left there.
  fake_->registers.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  ServiceInstance refused = MakeInstance("refused");
  refused.set_persistent(true);
  Register(MakeRegister({refused}));
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  ASSERT_TRUE(drained.done());
  EXPECT_EQ(drained.get()->unregistered(), 1);
  EXPECT_EQ(drained.get()->remaining(), 0);
  EXPECT_EQ(drained.get()->persistent(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

TEST_F(FailbackBoundsTest, Rule12_DrainEndsAtItsDeadlineAndTellsWhatIsOwed) {
  Start();
  Register("a");
  Register("b");
  GoAway();
  Unregister("b");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  Advance(absl::Milliseconds(9999));
  EXPECT_FALSE(drained.done());
  Advance(absl::Milliseconds(1));
  ASSERT_TRUE(drained.done());
  EXPECT_EQ(drained.get()->unregistered(), 0);
  EXPECT_EQ(drained.get()->remaining(), 2);
  ASSERT_EQ(drained.get()->left_size(), 2);
  EXPECT_EQ(drained.get()->left(0).key().instance_id(), "b") << "its own attempt has failed";
  for (const auto& left : drained.get()->left()) {
    EXPECT_EQ(left.upstream(), "grpc://fake");
    EXPECT_EQ(left.last_status().code(), static_cast<int>(absl::StatusCode::kUnavailable));
  }
}

TEST_F(FailbackBoundsTest, Rule12_ADrainNamesWhyTheSessionDoesNotEnd) {
  Start();
  RegisterRequest many;
  for (int i = 0; i < 20; ++i) {
    *many.add_registrations()->mutable_instance() = MakeInstance(absl::StrCat("i", 10 + i));
  }
  Register(many);
  fake_->closes.AnswerWith([](const auto&) { return absl::InternalError("not now"); });
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  Advance(absl::Seconds(1));
  EXPECT_EQ(drained.get()->remaining(), 20);
  ASSERT_EQ(drained.get()->left_size(), 16);
  EXPECT_EQ(drained.get()->left(15).key().instance_id(), "i25");
  EXPECT_NE(drained.get()->left(0).last_status().message().find("not now"), std::string::npos);
  EXPECT_EQ(registry_->UpstreamStatus().last_error().message(), "not now");
}

TEST_F(FailbackBoundsTest, Rule12_DrainAnswersWhoeverWaitsForAnAcknowledgement) {
  GoAway();
  Start();
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto waiting = Register(request);
  EXPECT_FALSE(waiting.done());
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  ASSERT_TRUE(waiting.done());
  EXPECT_EQ(ReasonOf(waiting.item()), registry::v1::ERROR_REASON_DRAINING);
  Advance(absl::Seconds(2));
  EXPECT_TRUE(drained.done());
}

// --- Rule 13.

TEST_F(FailbackBoundsTest, Rule13_TheBoundOfIntentsIsAnErrorToTheCaller) {
  options_.max_records = 2;
  Start();
  EXPECT_TRUE(Register("a").item().ok());
  EXPECT_TRUE(Register("b").item().ok());
  const auto refused = Register("c");
  EXPECT_EQ(ReasonOf(refused.item()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_EQ(ReasonMetadata(refused.item(), "limit"), "2");
  EXPECT_TRUE(Register("a", 99).item().ok()) << "an update needs no room";
  Unregister("b");
  EXPECT_TRUE(Register("c").item().ok());
}

TEST_F(FailbackBoundsTest, Rule13_TheBoundOfPendingIntentsLetsUnregistersPass) {
  options_.max_pending = 2;
  GoAway();
  Start();
  EXPECT_TRUE(Register("a").item().ok());
  EXPECT_TRUE(Register("b").item().ok());
  EXPECT_TRUE(Register("a", 2).item().ok()) << "no further one is pending";
  const auto refused = Register("c");
  EXPECT_EQ(ReasonOf(refused.item()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_EQ(ReasonMetadata(refused.item(), "limit"), "2");
  EXPECT_EQ(refused.item().message(),
            "the agent has 2 pending operations for grpc://fake, the most that it is configured "
            "for");
  EXPECT_EQ(ReasonOf(Unregister("unknown").item()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  auto listener = std::make_shared<RecordingListener>();
  auto stream = Subscribe(listener);
  ASSERT_TRUE(listener->end().has_value());
  EXPECT_EQ(ReasonOf(*listener->end()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_TRUE(Unregister("a").item().ok());
  CheckInvariants();
  Back();
  Advance(absl::Seconds(2));
  EXPECT_TRUE(Register("c").item().ok()) << "there is room again";
  fake_->unregisters.Hold();
  fake_->registers.Hold();
  EXPECT_TRUE(Register("d").item().ok());
  EXPECT_TRUE(Register("e").item().ok());
  EXPECT_TRUE(Unregister("b").item().ok()) << "held, and acknowledged: leads back below the bound";
}

TEST_F(FailbackBoundsTest, Rule13_TheBoundsOfSubscriptionsAndListenersAreErrorsToTheCaller) {
  options_.max_subscriptions = 1;
  options_.max_listeners = 2;
  Start();
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  const auto follow = [&](const std::string& service) {
    auto listener = std::make_shared<RecordingListener>();
    streams.push_back(Subscribe(listener, service));
    return listener->end().value_or(absl::OkStatus());
  };
  EXPECT_EQ(follow("orders"), absl::OkStatus());
  const absl::Status second = follow("payments");
  EXPECT_EQ(ReasonOf(second), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_EQ(second.message(),
            "the agent has 1 subscriptions for grpc://fake, the most that it is configured for");
  EXPECT_EQ(follow("orders"), absl::OkStatus()) << "shares the subscription";
  const absl::Status third = follow("orders");
  EXPECT_EQ(third.message(),
            "the agent has 2 listeners for grpc://fake, the most that it is configured for");
  EXPECT_EQ(ReasonMetadata(third, "limit"), "2");
  CheckInvariants();
  streams.clear();
  EXPECT_EQ(follow("payments"), absl::OkStatus()) << "there is room again";
}

TEST_F(FailbackBoundsTest, Rule13_TheBoundOfLocalSessionsIsAnErrorToTheCaller) {
  options_.max_sessions = 1;
  Start();
  const std::string first = OpenLocal("app-1");
  OpenSessionRequest request;
  request.set_incarnation("app-2");
  Answer<OpenSessionResponse> refused;
  registry_->OpenSession(request, refused.Catch());
  EXPECT_EQ(ReasonOf(refused.get().status()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_EQ(refused.get().status().message(),
            "the agent has 1 local sessions for grpc://fake, the most that it is configured for");
  EXPECT_EQ(OpenLocal("app-1"), first) << "resumed";
  Advance(absl::Seconds(11));
  EXPECT_NE(OpenLocal("app-2"), "");
}

// Callers that are distinguished do not take each other's places.
TEST_F(FailbackBoundsTest, Rule13_OneCallerDoesNotTakeEveryLocalSession) {
  options_.max_sessions = 12;
  Start();
  const auto open = [this](const std::string& incarnation, const std::string& owner) {
    return OpenOf(owner, incarnation, /*ttl_seconds=*/3600);
  };
  EXPECT_EQ(open("a-1", "a")->ttl().seconds(), 600) << "nor for long";
  const auto second = open("a-2", "a");
  EXPECT_TRUE(second.ok());
  EXPECT_TRUE(open("a-3", "a").ok());
  const absl::Status refused = open("a-4", "a").status();
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_NE(refused.message().find("local sessions of one owner: at most 3 are allowed"),
            std::string::npos)
      << refused;
  EXPECT_TRUE(open("a-2", "a").ok()) << "resumed";
  EXPECT_TRUE(open("b-1", "b").ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(open(absl::StrCat("nobody-", i), "").ok()) << i;
  CloseSessionRequest close;
  close.set_session_id(second->session_id());
  Answer<CloseSessionResponse> closed;
  registry_->CloseSession(close, closed.Catch());
  EXPECT_TRUE(open("a-4", "a").ok()) << "in the place of the one that has ended";
}

TEST_F(FailbackBoundsTest, Rule13_OneCallerDoesNotTakeEveryInstance) {
  options_.max_records = 4;
  options_.callers_have_names = true;
  Start();
  const auto state = [this](const std::string& session, const std::string& id) {
    RegisterRequest registration = MakeRegister({MakeInstance(id)});
    registration.set_session_id(session);
    return Register(registration).item();
  };
  const std::string a = OpenOf("a", "of-a")->session_id();
  const std::string b = OpenOf("b", "of-b")->session_id();
  EXPECT_TRUE(state(a, "a1").ok());
  EXPECT_TRUE(state(a, "a2").ok());
  const absl::Status refused = state(a, "a3");
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_LIMIT_REACHED) << refused;
  EXPECT_NE(refused.message().find("its share of limits.instances (4)"), std::string::npos)
      << refused;
  EXPECT_TRUE(state(a, "a2").ok()) << "what it has";
  EXPECT_TRUE(state(b, "b1").ok());
  EXPECT_EQ(ReasonOf(state(a, "b1")), registry::v1::ERROR_REASON_LIMIT_REACHED) << "another's";
  EXPECT_TRUE(state(b, "a1").ok()) << "it has two now";
  EXPECT_TRUE(state(a, "a3").ok()) << "and the other one";
  EXPECT_EQ(ReasonOf(state(b, "b3")), registry::v1::ERROR_REASON_LIMIT_REACHED);
}

TEST_F(FailbackBoundsTest, Rule13_InstancesWithoutASessionTogetherHaveTheShareOfOne) {
  options_.max_records = 4;
  options_.callers_have_names = true;
  Start();
  EXPECT_TRUE(Register("a").item().ok());
  EXPECT_TRUE(Register("b").item().ok());
  EXPECT_EQ(ReasonOf(Register("c").item()), registry::v1::ERROR_REASON_LIMIT_REACHED);
}

TEST_F(FailbackBoundsTest, Rule13_OfTheRestOnlyWhatHasNoSessionIsOfTheirShare) {
  options_.max_records = 8;
  options_.callers_have_names = true;
  Start();
  const std::string session = OpenOf("a", "of-a")->session_id();
  const auto state = [&](const std::string& id) {
    RegisterRequest request = MakeRegister({MakeInstance(id)});
    request.set_session_id(session);
    return Register(request).item();
  };
  for (const char* id : {"a1", "a2", "a3"}) EXPECT_TRUE(state(id).ok()) << id;
  for (const char* id : {"n1", "n2", "n3", "n4"}) EXPECT_TRUE(Register(id).item().ok()) << id;
  EXPECT_EQ(ReasonOf(Register("n5").item()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_TRUE(state("n1").ok()) << "is of the owner now";
  EXPECT_EQ(ReasonOf(state("n2")), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_TRUE(Register("n5").item().ok()) << "in its place";
}

// What is to be removed is in no caller's share.
TEST_F(FailbackBoundsTest, Rule13_WhoHasItsShareMayUnregister) {
  options_.max_records = 4;
  options_.callers_have_names = true;
  Start();
  const std::string session = OpenOf("a", "of-a")->session_id();
  RegisterRequest request = MakeRegister({MakeInstance("a1"), MakeInstance("a2")});
  request.set_session_id(session);
  Register(request);
  EXPECT_TRUE(Register("n1").item().ok());
  UnregisterRequest gone = MakeUnregister("n1");
  gone.set_session_id(session);
  EXPECT_EQ(Unregister(gone).item(), absl::OkStatus());
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
}

TEST_F(FailbackBoundsTest, Rule13_OneCallerDoesNotFollowAllThatMayBeFollowed) {
  options_.max_subscriptions = 4;
  Start();
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  const auto follow = [&](const std::string& owner, const std::string& service) {
    auto listener = std::make_shared<RecordingListener>();
    streams.push_back(Subscribe(std::make_shared<OwnedSubscriber>(owner, listener), service));
    return listener->end().value_or(absl::OkStatus());
  };
  EXPECT_EQ(follow("a", "one"), absl::OkStatus());
  EXPECT_EQ(follow("a", "two"), absl::OkStatus());
  const absl::Status refused = follow("a", "three");
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_LIMIT_REACHED) << refused;
  EXPECT_NE(refused.message().find("its share of limits.subscriptions (4)"), std::string::npos)
      << refused;
  EXPECT_EQ(follow("a", "two"), absl::OkStatus()) << "one that it follows";
  EXPECT_EQ(follow("b", "three"), absl::OkStatus());
  EXPECT_EQ(follow("", "four"), absl::OkStatus()) << "nobody in particular";
  streams[1].reset();
  EXPECT_EQ(ReasonOf(follow("a", "three")), registry::v1::ERROR_REASON_LIMIT_REACHED);
  streams[3].reset();
  EXPECT_EQ(follow("a", "three"), absl::OkStatus());
}

// A client that was away for longer than its TTL comes back to what is its own.
TEST_F(FailbackBoundsTest, AnIncarnationStaysItsOwnersWhenTheSessionHasEnded) {
  Start();
  ASSERT_TRUE(OpenOf("shop", "app").ok());
  Advance(absl::Minutes(1));
  EXPECT_EQ(registry_->local_sessions(), 0);
  EXPECT_EQ(ReasonOf(OpenOf("thief", "app").status()),
            registry::v1::ERROR_REASON_SESSION_NOT_OWNED);
  const auto again = OpenOf("shop", "app");
  ASSERT_TRUE(again.ok()) << again.status();
  CloseSessionRequest close;
  close.set_session_id(again->session_id());
  Answer<CloseSessionResponse> closed;
  registry_->CloseSession(close, closed.Catch());
  EXPECT_EQ(ReasonOf(OpenOf("thief", "app").status()),
            registry::v1::ERROR_REASON_SESSION_NOT_OWNED);
}

// Also over many sessions.
TEST_F(FailbackBoundsTest, Rule13_EndedSubscriptionsOfAllSessionsAreBounded) {
  options_.max_sessions = 200;
  Start();
  std::string session;
  const auto unsubscribe = [&](int i) {
    UnsubscribeRequest request;
    request.set_session_id(session);
    request.set_subscription_id(absl::StrCat("s", i));
    request.set_generation(7);
    Answer<UnsubscribeResponse> answer;
    registry_->Unsubscribe(request, answer.Catch());
    EXPECT_TRUE(answer.get().ok());
  };
  // Whether a Subscribe of this name that comes late is refused.
  const auto remembered = [&](int i) {
    auto listener = std::make_shared<RecordingListener>();
    auto stream = Subscribe(listener, "orders", session, absl::StrCat("s", i), 7);
    return listener->end().has_value();
  };
  for (int n = 0; n < 101; ++n) {
    session = OpenLocal(absl::StrCat("app-", n), 60);
    for (int i = 0; i < 1000; ++i) unsubscribe(i);
    EXPECT_EQ(remembered(999), n < 100) << n;
  }
  Advance(absl::Seconds(61));
  session = OpenLocal("later", 60);
  unsubscribe(1);
  EXPECT_TRUE(remembered(1)) << "those of ended sessions are forgotten";
}

TEST_F(FailbackBoundsTest, Rule13_EndedSubscriptionsAreNotRememberedWithoutBound) {
  Start();
  const std::string session = OpenLocal("app", 3600);
  const auto unsubscribe = [&](int i) {
    UnsubscribeRequest request;
    request.set_session_id(session);
    request.set_subscription_id(absl::StrCat("s", i));
    request.set_generation(i);
    Answer<UnsubscribeResponse> answer;
    registry_->Unsubscribe(request, answer.Catch());
  };
  for (int i = 1; i <= 1001; ++i) unsubscribe(i);
  auto newest = std::make_shared<RecordingListener>();
  auto refused = Subscribe(newest, "orders", session, "s1001", 1001);
  EXPECT_TRUE(newest->end().has_value()) << "a late one is refused";
  auto oldest = std::make_shared<RecordingListener>();
  auto forgotten = Subscribe(oldest, "orders", session, "s1", 1);
  EXPECT_FALSE(oldest->end().has_value());
}

// --- Rule 15.

TEST_F(FailbackBoundsTest, Rule15_DestructionAnswersEveryCallUnderWay) {
  Start();
  fake_->registers.Hold();
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto waiting = Register(request);
  fake_->lists.Hold();
  Answer<ListResponse> list;
  registry_->List(ListRequest(), list.Catch());
  registry_.reset();
  EXPECT_EQ(waiting.item().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(list.get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(timer_->pending(), 0) << "something is left on the wheel";
}

TEST_F(FailbackBoundsTest, Rule15_DestructionAnswersADrainUnderWay) {
  options_.anti_entropy_interval = absl::Minutes(1);
  Start();
  Register("a");
  GoAway();
  Unregister("a");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Minutes(1), drained.Catch());
  EXPECT_FALSE(drained.done());
  registry_.reset();
  EXPECT_EQ(drained.get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(timer_->pending(), 0) << "also of the comparison that would have come";
}

TEST_F(FailbackBoundsTest, Rule15_DestructionWithRetriesWaitingLeavesTheWheelEmpty) {
  Start();
  auto listener = std::make_shared<RecordingListener>();
  auto stream = Subscribe(listener);
  fake_->subscriptions()[0]->End(absl::InternalError("broken"));
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  OpenLocal("app");
  EXPECT_EQ(timer_->pending(), 1) << "one timeout for all that waits";
  registry_.reset();
  EXPECT_EQ(timer_->pending(), 0);
  EXPECT_EQ(listener->end()->code(), absl::StatusCode::kCancelled);
}

TEST_F(FailbackBoundsTest, Rule15_ACallbackMayDestroyTheRegistry) {
  Start();
  fake_->registers.Hold();
  RegisterRequest request = MakeRegister({MakeInstance("a"), MakeInstance("b")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  int ran = 0;
  registry_->Register(request, [&](absl::StatusOr<RegisterResponse> response) {
    ++ran;
    EXPECT_TRUE(response.ok());
    registry_.reset();
  });
  RegisterResponse response;
  response.add_results();
  response.add_results();
  fake_->registers.Complete(response);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(FailbackBoundsTest, Rule15_NoEventFollowsACallbackThatHasDestroyedTheRegistry) {
  options_.max_calls_in_flight = 1;
  Start();
  fake_->registers.Hold();
  Register("first");
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  size_t heard = 0;
  registry_->Register(request, [&](const absl::StatusOr<RegisterResponse>&) {
    heard = events_.size();
    registry_.reset();
  });
  Register("b");
  RegisterResponse response;
  response.add_results();
  fake_->registers.Complete(response);
  ASSERT_EQ(fake_->registers.last_request().registrations_size(), 2) << "both are in one batch";
  response.add_results();
  fake_->registers.Complete(response);
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(heard, 3) << "before the answer";
  EXPECT_EQ(events_.size(), heard);
}

TEST_F(FailbackBoundsTest, Rule15_ACallbackMayDestroyTheRegistryWithinTheCallItself) {
  Start();
  registry_->Register(MakeRegister({MakeInstance("a")}),
                      [&](absl::StatusOr<RegisterResponse>) { registry_.reset(); });
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(FailbackBoundsTest, Rule15_ATimerTaskMayLeadToDestruction) {
  Start();
  fake_->registers.Answer(absl::InternalError("once"));
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  registry_->Register(request, [&](absl::StatusOr<RegisterResponse>) { registry_.reset(); });
  Advance(absl::Seconds(1));
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(FailbackBoundsTest, Rule15_CallbacksMayCallBackIn) {
  Start();
  int depth = 0;
  std::function<void(absl::StatusOr<RegisterResponse>)> next =
      [&](absl::StatusOr<RegisterResponse>) {
        if (++depth < 50) {
          registry_->Register(MakeRegister({MakeInstance(absl::StrCat(depth))}),
                              [&](absl::StatusOr<RegisterResponse> r) { next(std::move(r)); });
        }
      };
  registry_->Register(MakeRegister({MakeInstance("start")}),
                      [&](absl::StatusOr<RegisterResponse> r) { next(std::move(r)); });
  EXPECT_EQ(depth, 50);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 50);
}

// --- wait_for.

TEST_F(FailbackBoundsTest, WaitForAcknowledgedOutlivesAnOutage) {
  GoAway();
  Start();
  RegisterRequest request = MakeRegister({MakeInstance("a"), MakeInstance("b")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto answer = Register(request);
  Advance(absl::Minutes(10));
  EXPECT_FALSE(answer.done());
  Back();
  Advance(absl::Seconds(2));
  ASSERT_TRUE(answer.done());
  EXPECT_TRUE(answer.item(0).ok());
  EXPECT_EQ(answer.get()->results(1).state(), INTENT_STATE_ACKNOWLEDGED);
}

TEST_F(FailbackBoundsTest, WaitForWhatIsAlreadyAcknowledgedAnswersAtOnce) {
  Start();
  Register("a");
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(Register(request).get()->results(0).state(), INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

// --- The operator.

TEST_F(FailbackBoundsTest, PendingRowsTellEverything) {
  options_.retry.retry_times = 5;
  options_.retry.retry_period = absl::Seconds(5);
  Start();
  fake_->registers.Answer(absl::InternalError("broken"));
  Advance(absl::Milliseconds(100));
  Register("a");
  fake_->unregisters.Hold();
  Unregister("b");
  Advance(absl::Seconds(1));
  const auto rows = registry_->Pending();
  ASSERT_EQ(rows.size(), 2);
  const auto& row = rows[0];
  EXPECT_EQ(row.id(), "register default/orders/a");
  EXPECT_EQ(row.kind(), agent::v1::OPERATION_KIND_REGISTER);
  EXPECT_EQ(row.key().instance_id(), "a");
  EXPECT_EQ(row.generation(), 1);
  EXPECT_EQ(row.state(), agent::v1::PENDING_STATE_WAITING);
  EXPECT_EQ(row.times(), 1);
  EXPECT_EQ(row.retry_times(), 5);
  EXPECT_EQ(row.since().seconds(), 1700000000);
  EXPECT_EQ(row.since().nanos(), 100000000);
  EXPECT_EQ(row.next_attempt().seconds(), 1700000005);
  EXPECT_EQ(row.next_attempt().nanos(), 100000000);
  EXPECT_EQ(StatusFromProto(row.last_status()).message(), "broken");
  EXPECT_EQ(row.upstream(), "grpc://fake");
  EXPECT_EQ(rows[1].id(), "unregister default/orders/b");
  EXPECT_EQ(rows[1].state(), agent::v1::PENDING_STATE_IN_FLIGHT);
  EXPECT_EQ(rows[1].times(), 0);
  EXPECT_FALSE(rows[1].has_last_status());
}

TEST_F(FailbackBoundsTest, RetryNamesAnUnknownIdAndDoesNothing) {
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  const auto result = registry_->Retry({"register default/orders/a", "register default/orders/x"});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(result.status().message().find("register default/orders/x"), std::string::npos);
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(FailbackBoundsTest, RetryDoesNotWait) {
  Start();
  fake_->registers.Answer(absl::InternalError("no"));
  Register("a");
  EXPECT_EQ(*registry_->Retry({"register default/orders/a"}), 1);
  EXPECT_EQ(fake_->registers.request_count(), 2);
  Advance(absl::Seconds(60));
  EXPECT_EQ(fake_->registers.request_count(), 2) << "the timeout on the wheel was cancelled";
}

TEST_F(FailbackBoundsTest, CancelGivesUpUntilANewIntent) {
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  int64_t sent = 0;
  EXPECT_EQ(*registry_->Cancel({"register default/orders/a"}, &sent), 1);
  EXPECT_EQ(sent, 0) << "its attempt has ended";
  EXPECT_EQ(registry_->Pending().size(), 0);
  EXPECT_EQ(registry_->Cancel({"register default/orders/a"}).status().code(),
            absl::StatusCode::kNotFound);
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Minutes(1));
  EXPECT_EQ(fake_->registers.request_count(), 1) << "not even a resync tries it again";
  Register("a");
  EXPECT_EQ(fake_->registers.request_count(), 2);
}

TEST_F(FailbackBoundsTest, WhatWasCancelledIsNotListed) {
  Start();
  GoAway();
  Advance(absl::Seconds(5));
  Register("a");
  Register("b");
  ASSERT_EQ(*registry_->Cancel({"register default/orders/a"}), 1);
  Answer<ListResponse> listed;
  registry_->List(ListRequest(), listed.Catch());
  ASSERT_TRUE(listed.get().ok()) << listed.get().status();
  ASSERT_EQ(listed.get()->records_size(), 1);
  EXPECT_EQ(listed.get()->records(0).instance().key().instance_id(), "b");
}

TEST_F(FailbackBoundsTest, CancelLetsACallInFlightFinishAndKeepsItTheOnlyOne) {
  Start();
  fake_->registers.Hold();
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto waiting = Register(request);
  int64_t sent = 0;
  EXPECT_EQ(*registry_->Cancel({}, &sent), 1);
  EXPECT_EQ(sent, 1);
  EXPECT_EQ(waiting.item().code(), absl::StatusCode::kCancelled);
  Register("a", 2);
  EXPECT_EQ(fake_->registers.held_count(), 1) << "two calls of one key in flight";
  fake_->registers.Release();
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 2);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackBoundsTest, WhatWasCancelledInFlightStaysSoHoweverThatEnds) {
  Start();
  uint32_t port = 0;
  for (const absl::Status& end :
       {absl::UnavailableError("busy"), absl::InternalError("no"),
        Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "a later incarnation holds it",
                {{"rank", "9"}, {"generation", "1"}})}) {
    fake_->registers.Hold();
    Register("a", ++port);
    ASSERT_EQ(*registry_->Cancel({}), 1);
    ASSERT_TRUE(fake_->registers.Complete(end));
    fake_->registers.Release();
    EXPECT_EQ(registry_->Pending().size(), 0) << end;
    CheckInvariants();
    Advance(absl::Minutes(1));
    EXPECT_EQ(fake_->registers.request_count(), port) << end;
  }
}

// --- List.

TEST_F(FailbackBoundsTest, ListAsksTheRegistryAndAnswersFromMemoryWhileThatIsAway) {
  Start();
  Register("a");
  ListResponse there;
  *there.add_records()->mutable_instance() = MakeInstance("elsewhere");
  fake_->lists.Answer(there);
  Answer<ListResponse> answer;
  registry_->List(ListRequest(), answer.Catch());
  EXPECT_EQ(answer.get()->records_size(), 1);
  EXPECT_FALSE(answer.get()->stale());

  GoAway();
  Advance(absl::Seconds(5));
  Register("b");
  Unregister("a");
  Answer<ListResponse> known;
  registry_->List(ListRequest(), known.Catch());
  ASSERT_EQ(known.get()->records_size(), 1);
  EXPECT_TRUE(known.get()->stale());
  EXPECT_EQ(known.get()->records(0).instance().key().instance_id(), "b");
  EXPECT_EQ(known.get()->records(0).state(), INTENT_STATE_ACCEPTED);
  EXPECT_EQ(known.get()->records(0).incarnation(), "inc");
}

TEST_F(FailbackBoundsTest, ListFromMemoryPages) {
  GoAway();
  Start();
  for (int i = 0; i < 25; ++i) Register(absl::StrCat("i", i));
  ListRequest request;
  request.set_page_size(10);
  std::set<std::string> seen;
  for (int page = 0; page < 3; ++page) {
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    ASSERT_TRUE(answer.get().ok());
    for (const auto& record : answer.get()->records()) {
      EXPECT_TRUE(seen.insert(record.instance().key().instance_id()).second);
    }
    request.set_page_token(answer.get()->next_page_token());
  }
  EXPECT_EQ(seen.size(), 25);
  EXPECT_EQ(request.page_token(), "");
}

TEST_F(FailbackBoundsTest, ListFromMemory_BoundsThePageAsTheStoreDoes) {
  GoAway();
  Start();
  for (int i = 0; i <= kMaxPageSize; ++i) Register(absl::StrCat("i", i));
  for (const int page_size : {0, kMaxPageSize + 1}) {
    ListRequest request;
    request.set_page_size(page_size);
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    ASSERT_TRUE(answer.get().ok());
    EXPECT_EQ(answer.get()->records_size(), kMaxPageSize);
    EXPECT_NE(answer.get()->next_page_token(), "");
  }
  // Large ones: the bytes end the page.
  for (int i = 0; i < 200; ++i) {
    ServiceInstance instance = MakeInstance(absl::StrCat("a", i));
    for (int entry = 0; entry < 15; ++entry) {
      (*instance.mutable_metadata())[absl::StrCat("key", entry)] = std::string(1000, 'x');
    }
    Register(MakeRegister({instance}));
  }
  Answer<ListResponse> answer;
  registry_->List(ListRequest(), answer.Catch());
  ASSERT_TRUE(answer.get().ok());
  EXPECT_LE(answer.get()->ByteSizeLong(), kPageBytes + (64 << 10));
  EXPECT_LT(answer.get()->records_size(), 200);
  EXPECT_NE(answer.get()->next_page_token(), "");
}

TEST_F(FailbackBoundsTest, ListFromMemory_RefusesATokenThatIsNoPlace) {
  GoAway();
  Start();
  Register("a");
  for (const char* token : {"$", "bm8ga2V5"}) {  // not base64; "no key"
    ListRequest request;
    request.set_page_token(token);
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    EXPECT_EQ(answer.get().status().message(), "page_token: is not a token of an earlier page");
  }
}

}  // namespace
}  // namespace failback
