// The rules of the failback core about bounds: batches (10), intents, sessions, subscriptions (13).

#include <algorithm>
#include <set>
#include <string>

#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/owned_subscriber.h"

namespace failback {
namespace {

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

}  // namespace
}  // namespace failback
