// The rules of the failback core, one by one. docs/design.md ("Invariants") refers to these tests.

#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACCEPTED;
using registry::v1::INTENT_STATE_ACKNOWLEDGED;

class FailbackRegistryTest : public FailbackTest {};

TEST_F(FailbackRegistryTest, BadOptionsAreRefusedByName) {
  const auto error = [&](auto change) {
    FailbackRegistry::Options options = options_;
    change(options);
    auto created = FailbackRegistry::Create(std::make_unique<FakeRegistry>(), options);
    EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(created.status().message());
  };
  EXPECT_EQ(error([](auto& o) { o.timer = nullptr; }), "timer: is required");
  EXPECT_EQ(error([](auto& o) { o.max_calls_in_flight = 0; }),
            "max_calls_in_flight: 0 is not 1 or more");
  EXPECT_EQ(error([](auto& o) { o.max_batch = -1; }), "max_batch: -1 is not 1 or more");
  EXPECT_EQ(error([](auto& o) { o.max_records = 0; }), "max_records: 0 is not 1 or more");
  EXPECT_EQ(error([](auto& o) { o.stale_grace = absl::Seconds(-1); }),
            "stale_grace: -1s is negative");
  EXPECT_EQ(error([](auto& o) { o.retry.retry_times = -2; }),
            "retry.retry_times: -2 is not -1 (for ever) or more");
  EXPECT_EQ(error([](auto& o) { o.reconnect.multiplier = 0.5; }),
            "reconnect.multiplier: 0.5 is not 1 or more");
  EXPECT_EQ(error([](auto& o) { o.incarnation = "with space"; }).substr(0, 12), "incarnation:");
}

TEST_F(FailbackRegistryTest, AcceptsAtOnceAndSendsInTheSession) {
  Start();
  const auto answer = Register("a");
  ASSERT_TRUE(answer.done());
  EXPECT_TRUE(answer.item().ok());
  EXPECT_EQ(answer.get()->results(0).state(), INTENT_STATE_ACCEPTED);
  EXPECT_EQ(answer.get()->results(0).generation(), 1);
  ASSERT_EQ(fake_->registers.request_count(), 1);
  const RegisterRequest sent = fake_->registers.last_request();
  EXPECT_EQ(sent.session_id(), "session-of-inc");
  EXPECT_EQ(sent.registrations(0).generation(), 1);
  EXPECT_EQ(sent.registrations(0).instance().key().instance_id(), "a");
  EXPECT_EQ(registry_->Pending().size(), 0);
  EXPECT_EQ(EventNames(), std::vector<std::string>{"acknowledged register default/orders/a"});
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRegistryTest, AcceptsWhileTheRegistryHasNeverBeenThere) {
  GoAway();
  Start();
  EXPECT_TRUE(Register("a").item().ok());
  EXPECT_TRUE(Unregister("b").item().ok());
  Advance(absl::Seconds(60));
  EXPECT_EQ(fake_->registers.request_count(), 0);
  EXPECT_EQ(registry_->Pending().size(), 2);
  Back();
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRegistryTest, BadItemsAreRefusedOneByOneAndOthersGo) {
  Start();
  const auto answer = Register(MakeRegister({MakeInstance("a"), MakeInstance("b", 70000)}));
  EXPECT_TRUE(answer.item(0).ok());
  EXPECT_EQ(answer.item(1).message(), "registrations[1].instance.port: 70000 is not in 1..65535");
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations_size(), 1);
}

// --- Rule 1.

TEST_F(FailbackRegistryTest, Rule1_NewIntentTakesAHigherGenerationAndCancelsTheWaitingRetry) {
  Start();
  fake_->registers.Answer(absl::InternalError("one"));
  Register("a", 1);
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_WAITING);
  Register("a", 2);
  EXPECT_EQ(timer_->pending(), 1) << "the old retry is still on the wheel beside the renewal";
  ASSERT_EQ(fake_->registers.request_count(), 2);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 2);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 2);
  Advance(absl::Seconds(60));
  EXPECT_EQ(fake_->registers.request_count(), 2);
}

TEST_F(FailbackRegistryTest, Rule1_OneCallPerKeyIsInFlight) {
  Start();
  fake_->registers.Hold();
  for (uint32_t port = 1; port <= 10; ++port) Register("a", port);
  EXPECT_EQ(fake_->registers.held_count(), 1);
  fake_->registers.Release();
  ASSERT_EQ(fake_->registers.request_count(), 2) << "only the newest follows";
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 10);
}

TEST_F(FailbackRegistryTest, Rule1_SameIntentAgainJoinsTheOneUnderWay) {
  Start();
  fake_->registers.Hold();
  const auto first = Register("a");
  const auto second = Register("a");
  EXPECT_EQ(second.get()->results(0).generation(), first.get()->results(0).generation());
  fake_->registers.Release();
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

// --- Rule 2.

TEST_F(FailbackRegistryTest, Rule2_UnregisterFollowsARegisterThatIsInFlight) {
  Start();
  fake_->registers.Hold();
  Register("a");
  Unregister("a");
  EXPECT_EQ(fake_->unregisters.request_count(), 0) << "the register may still land";
  fake_->registers.Release();
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.last_request().deregistrations(0).generation(), 2);
  EXPECT_EQ(registry_->Pending().size(), 0);
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
}

TEST_F(FailbackRegistryTest, Rule2_LateCompletionAcknowledgesNothing) {
  Start();
  fake_->registers.Hold();
  RegisterRequest first = MakeRegister({MakeInstance("a", 1)});
  first.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto waiting = Register(first);
  EXPECT_FALSE(waiting.done());
  RegisterRequest second = MakeRegister({MakeInstance("a", 2)});
  second.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto newest = Register(second);
  EXPECT_EQ(ReasonOf(waiting.item()), registry::v1::ERROR_REASON_SUPERSEDED);
  ASSERT_TRUE(fake_->registers.Complete(RegisterResponse(
      [] {
        RegisterResponse response;
        response.add_results();
        return response;
      }())));
  EXPECT_FALSE(newest.done()) << "acknowledged by the answer to an older generation";
  ASSERT_EQ(registry_->Pending().size(), 1);
  fake_->registers.Release();
  EXPECT_EQ(newest.get()->results(0).state(), INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(newest.get()->results(0).generation(), 2);
}

TEST_F(FailbackRegistryTest, Rule2_LateFailureDoesNotPutTheOldIntentOnTheWheel) {
  Start();
  fake_->registers.Hold();
  Register("a", 1);
  Register("a", 2);
  fake_->registers.Complete(absl::InternalError("late"));
  EXPECT_EQ(fake_->registers.held_count(), 1);
  EXPECT_EQ(EventNames().size(), 0);
  fake_->registers.Release();
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 2);
}

// --- Rule 3.

TEST_F(FailbackRegistryTest, Rule3_GenerationReusedTakesAHigherNumber) {
  Start();
  fake_->registers.Answer([] {
    RegisterResponse response;
    *response.add_results()->mutable_status() =
        StatusToProto(Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED, "reused",
                              {{"rank", "1"}, {"generation", "41"}}));
    return response;
  }());
  Register("a");
  ASSERT_EQ(fake_->registers.request_count(), 2);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 42);
  Register("b");
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 43);
}

TEST_F(FailbackRegistryTest, Rule3_SupersededByOurOwnRankMeansThatOurNumbersWentBack) {
  Back();
  Start();  // rank 7
  fake_->registers.Answer([] {
    RegisterResponse response;
    *response.add_results()->mutable_status() =
        StatusToProto(Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "older",
                              {{"rank", "7"}, {"generation", "100"}}));
    return response;
  }());
  Register("a");
  ASSERT_EQ(fake_->registers.request_count(), 2);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 101);
  EXPECT_EQ(registry_->Pending().size(), 0);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRegistryTest, Rule3_ARegistryThatRefusesEveryNumberIsNotSpunAgainst) {
  Start();
  fake_->registers.AnswerWith([](const auto&) {
    return Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED, "no", {{"generation", "3"}});
  });
  Register("a");
  EXPECT_EQ(fake_->registers.request_count(), 2);
  Advance(absl::Seconds(60));
  EXPECT_LT(fake_->registers.request_count(), 15);
  EXPECT_EQ(registry_->Pending().size(), 1);
}

TEST_F(FailbackRegistryTest, Rule3_AnAbsurdGenerationInARefusalIsNotBelieved) {
  Start();
  fake_->registers.Answer(Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED, "no",
                                  {{"generation", "18446744073709551615"}}));
  Register("a");
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 2);
}

TEST_F(FailbackRegistryTest, Rule3_SupersededByANewerIncarnationIsDoneAndTold) {
  Back();
  Start();
  fake_->registers.Answer([] {
    RegisterResponse response;
    *response.add_results()->mutable_status() =
        StatusToProto(Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "newer incarnation",
                              {{"rank", "8"}, {"generation", "1"}}));
    return response;
  }());
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto answer = Register(request);
  EXPECT_EQ(ReasonOf(answer.item()), registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(EventNames(), std::vector<std::string>{"superseded register default/orders/a"});
  EXPECT_EQ(registry_->Pending().size(), 0);
  Advance(absl::Seconds(60));
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

// --- Rule 4, on the agent's side: its own tombstones for its clients' generations.

TEST_F(FailbackRegistryTest, Rule4_ALateRegisterOfALocalClientIsRefused) {
  Start();
  const std::string session = OpenLocal("app");
  RegisterRequest registration = MakeRegister({MakeInstance("a")});
  registration.set_session_id(session);
  registration.mutable_registrations(0)->set_generation(1);
  EXPECT_TRUE(Register(registration).item().ok());
  UnregisterRequest gone = MakeUnregister("a");
  gone.set_session_id(session);
  gone.mutable_deregistrations(0)->set_generation(2);
  EXPECT_TRUE(Unregister(gone).item().ok());
  EXPECT_EQ(ReasonOf(Register(registration).item()), registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
  registration.mutable_registrations(0)->set_generation(2);
  EXPECT_EQ(ReasonOf(Register(registration).item()), registry::v1::ERROR_REASON_GENERATION_REUSED);
  registration.mutable_registrations(0)->set_generation(3);
  EXPECT_TRUE(Register(registration).item().ok());
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 1);
}

// --- Rule 5: what each code does is in status_policy_test; here that it is done.

TEST_F(FailbackRegistryTest, Rule5_RetriesWithTheComputedDelays) {
  Start();
  random_ = 0.999;
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  std::vector<int64_t> at_ms;
  size_t seen = fake_->registers.request_count();
  for (int ms = 1; ms <= 8000; ++ms) {
    Advance(absl::Milliseconds(1));
    if (fake_->registers.request_count() != seen) at_ms.push_back(ms);
    seen = fake_->registers.request_count();
  }
  // Ceilings 500, 1000, 2000, 4000 ms; 99.9 % of each, and never early on a 1 ms wheel.
  EXPECT_EQ(at_ms, (std::vector<int64_t>{500, 1499, 3497, 7493}));
}

TEST_F(FailbackRegistryTest, Rule5_FixedPeriodAndRetryTimesAsInDubbo) {
  options_.retry.retry_period = absl::Seconds(5);
  options_.retry.retry_times = 3;
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  EXPECT_EQ(registry_->Pending()[0].times(), 1);
  for (int retry = 1; retry <= 3; ++retry) {
    Advance(absl::Milliseconds(4999));
    EXPECT_EQ(fake_->registers.request_count(), retry);
    Advance(absl::Milliseconds(1));
    EXPECT_EQ(fake_->registers.request_count(), retry + 1);
  }
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
  EXPECT_EQ(registry_->Pending()[0].times(), 3);
  Advance(absl::Minutes(5));
  EXPECT_EQ(fake_->registers.request_count(), 4) << "exactly retry_times retries";
  EXPECT_EQ(EventNames(), (std::vector<std::string>{"retrying register default/orders/a",
                                                    "parked register default/orders/a"}));
}

TEST_F(FailbackRegistryTest, Rule5_NotFoundOnUnregisterIsDone) {
  Start();
  fake_->unregisters.Answer(absl::NotFoundError("not here"));
  Unregister("a");
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRegistryTest, Rule5_AnUnregisterThatWasNotSentIsNotDoneByNotFound) {
  // OpenSession answers NOT_FOUND (a proxy that knows no route): nothing was unregistered.
  GoAway(absl::NotFoundError("no route"));
  Start();
  Unregister("a");
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
  Back();
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRegistryTest, Rule5_OneBadItemDoesNotParkItsBatch) {
  Start();
  fake_->registers.AnswerWith([](const RegisterRequest& request) -> absl::StatusOr<RegisterResponse> {
    RegisterResponse response;
    for (const auto& registration : request.registrations()) {
      if (registration.instance().key().instance_id() == "bad") {
        return absl::ResourceExhaustedError("message larger than max");
      }
      response.add_results();
    }
    return response;
  });
  Register(MakeRegister({MakeInstance("a"), MakeInstance("bad"), MakeInstance("b")}));
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].id(), "register default/orders/bad");
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 2);
}

TEST_F(FailbackRegistryTest, Rule5_AnAnswerWithTooFewResultsIsAFailureOfTheRest) {
  Start();
  fake_->registers.Answer([] {
    RegisterResponse response;
    response.add_results();
    return response;
  }());
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b")}));
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].id(), "register default/orders/b");
}

// --- Rule 6.

TEST_F(FailbackRegistryTest, Rule6_ParkedIsLoudAndShown) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("not you"));
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto answer = Register(request);
  EXPECT_EQ(answer.item().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(EventNames(), std::vector<std::string>{"parked register default/orders/a"});
  EXPECT_EQ(registry_->UpstreamStatus().parked(), 1);
  EXPECT_EQ(registry_->UpstreamStatus().pending(), 0);
  ASSERT_EQ(registry_->Pending().size(), 1);
  Advance(absl::Hours(1));
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(FailbackRegistryTest, Rule6_ParkedIsReArmedByRetry) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("not you"));
  Register("a");
  EXPECT_EQ(*registry_->Retry({"register default/orders/a"}), 1);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRegistryTest, Rule6_ParkedIsReArmedByANewIntentEvenWithTheSamePayload) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("not you"));
  Register("a");
  Register("a");
  EXPECT_EQ(fake_->registers.request_count(), 2);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRegistryTest, Rule6_ParkedIsReArmedByReconnect) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("not you"));
  Register("a");
  GoAway();
  Advance(absl::Seconds(4));  // a renewal fails
  EXPECT_EQ(registry_->UpstreamStatus().state(), agent::v1::UPSTREAM_STATE_CONNECTING);
  Back("session-of-inc");
  Advance(absl::Seconds(2));
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRegistryTest, Rule6_AReArmedTaskHasAllItsRetriesAgain) {
  options_.retry.retry_times = 1;
  options_.retry.retry_period = absl::Seconds(1);
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  Advance(absl::Seconds(10));
  EXPECT_EQ(fake_->registers.request_count(), 2);
  EXPECT_EQ(*registry_->Retry({}), 1);
  Advance(absl::Seconds(10));
  EXPECT_EQ(fake_->registers.request_count(), 4);
}

// --- Rule 7.

RegisterRequest Checked(const ServiceInstance& instance) {
  RegisterRequest request = MakeRegister({instance});
  request.set_check(true);
  return request;
}

TEST_F(FailbackRegistryTest, Rule7_CheckCompletesWithTheFirstAttempt) {
  Start();
  fake_->registers.Hold();
  const auto answer = Register(Checked(MakeInstance("a")));
  EXPECT_FALSE(answer.done());
  fake_->registers.Release();
  EXPECT_TRUE(answer.item().ok());
  EXPECT_EQ(answer.get()->results(0).state(), INTENT_STATE_ACKNOWLEDGED);
}

TEST_F(FailbackRegistryTest, Rule7_AFailedCheckIsReturnedAndNothingIsQueued) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("no"));
  EXPECT_EQ(Register(Checked(MakeInstance("a"))).item().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(registry_->Pending().size(), 0);
  Advance(absl::Minutes(1));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 0) << "it cannot have landed";
}

TEST_F(FailbackRegistryTest, Rule7_ACheckThatMayHaveLandedOwesAnUnregister) {
  Start();
  fake_->registers.Answer(absl::DeadlineExceededError("late"));
  EXPECT_EQ(Register(Checked(MakeInstance("a"))).item().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_GT(fake_->unregisters.last_request().deregistrations(0).generation(),
            fake_->registers.last_request().registrations(0).generation());
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRegistryTest, Rule7_AFailedCheckRestoresWhatWasThere) {
  Start();
  Register("a", 1);
  fake_->registers.Answer(absl::DeadlineExceededError("late"));
  EXPECT_FALSE(Register(Checked(MakeInstance("a", 2))).item().ok());
  ASSERT_EQ(fake_->registers.request_count(), 3);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 3);
}

TEST_F(FailbackRegistryTest, Rule7_CheckWhileTheRegistryIsAwayFailsAtOnce) {
  GoAway();
  Start();
  EXPECT_EQ(Register(Checked(MakeInstance("a"))).item().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(registry_->Pending().size(), 0);
  Back();
  Advance(absl::Seconds(10));
  EXPECT_EQ(fake_->registers.request_count(), 0);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

TEST_F(FailbackRegistryTest, Rule7_ACheckReplacedByACheckCompensatesForBoth) {
  Start();
  fake_->registers.Hold();
  const auto first = Register(Checked(MakeInstance("a", 1)));
  const auto second = Register(Checked(MakeInstance("a", 2)));
  EXPECT_EQ(ReasonOf(first.item()), registry::v1::ERROR_REASON_SUPERSEDED);
  fake_->registers.Complete(absl::DeadlineExceededError("the first may have landed"));
  fake_->registers.Complete(absl::PermissionDeniedError("the second has not"));
  EXPECT_EQ(second.item().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
}

TEST_F(FailbackRegistryTest, Rule7_ACheckedUnregisterThatFailsLeavesTheInstanceDesired) {
  Start();
  Register("a", 1);
  fake_->unregisters.Answer(absl::DeadlineExceededError("late"));
  UnregisterRequest request = MakeUnregister("a");
  request.set_check(true);
  EXPECT_FALSE(Unregister(request).item().ok());
  EXPECT_EQ(fake_->registers.request_count(), 2) << "put back, as it may be gone";
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

// --- Rule 8.

TEST_F(FailbackRegistryTest, Rule8_ALostSessionIsOpenedAnewAndEverythingIsSentAgain) {
  Start();
  Register("a");
  Register("b");
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->registers.ClearRequests();
  Advance(absl::Seconds(4));
  ASSERT_EQ(fake_->registers.request_count(), 1);
  const RegisterRequest sent = fake_->registers.last_request();
  EXPECT_EQ(sent.session_id(), "session-2");
  EXPECT_EQ(sent.registrations_size(), 2);
  EXPECT_EQ(fake_->opens.last_request().incarnation(), "inc");
}

TEST_F(FailbackRegistryTest, Rule8_SessionUnknownFromARegisterLeadsToAResync) {
  Start();
  Register("a");
  Back("session-2");
  fake_->registers.Answer(SessionUnknown());
  Register("b");
  Advance(absl::Seconds(2));
  std::set<std::string> sent;
  for (const auto& request : fake_->registers.requests()) {
    if (request.session_id() != "session-2") continue;
    for (const auto& r : request.registrations()) sent.insert(r.instance().key().instance_id());
  }
  EXPECT_EQ(sent, (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRegistryTest, Rule8_AChangedEpochResyncs) {
  Start();
  Register("a");
  fake_->registers.ClearRequests();
  fake_->keep_alives.AnswerWith([](const KeepAliveRequest& r) { return Renewed(r, 2); });
  Advance(absl::Seconds(4));
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 1)
      << "the same intent keeps its number";
}

TEST_F(FailbackRegistryTest, Rule8_ConnectionBackAfterALossResyncs) {
  Start();
  Register("a");
  fake_->registers.ClearRequests();
  GoAway();
  Advance(absl::Seconds(4));
  Back("session-of-inc");
  Advance(absl::Seconds(2));
  ASSERT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(FailbackRegistryTest, Rule8_OneUnavailableAnswerIsNotALossOfTheConnection) {
  Start();
  Register("a");
  fake_->registers.ClearRequests();
  fake_->registers.AnswerWith([](const RegisterRequest& request) { return Away(); });
  Register("b");
  Advance(absl::Seconds(30));
  for (const auto& request : fake_->registers.requests()) {
    EXPECT_EQ(request.registrations(0).instance().key().instance_id(), "b")
        << "renewals succeed all the while: nothing was lost";
  }
  EXPECT_LT(fake_->registers.request_count(), 12);
  EXPECT_LT(fake_->keep_alives.request_count(), 30);
}

TEST_F(FailbackRegistryTest, Rule8_AnAnswerFromBeforeTheLossDoesNotCount) {
  Start();
  fake_->registers.Hold();
  Register("a");
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  RegisterResponse ok;
  ok.add_results();
  fake_->registers.Complete(ok);  // answered in the session that is lost
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 0);
  fake_->registers.Release();
  EXPECT_EQ(fake_->registers.last_request().session_id(), "session-2");
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRegistryTest, Rule8_OutageCostsOneCallASecondAndNotOnePerRecord) {
  Start();
  for (int i = 0; i < 100; ++i) Register(absl::StrCat("i", i));
  GoAway();
  Advance(absl::Seconds(10));
  const size_t before = fake_->keep_alives.request_count() + fake_->registers.request_count();
  for (int i = 100; i < 200; ++i) Register(absl::StrCat("i", i));
  Advance(absl::Seconds(30));
  const size_t calls = fake_->keep_alives.request_count() + fake_->registers.request_count() - before;
  EXPECT_GE(calls, 25);
  EXPECT_LE(calls, 45);
}

// --- Rule 10.

TEST_F(FailbackRegistryTest, Rule10_ThousandsGoInBatchesAndTheWindowIsKept) {
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

TEST_F(FailbackRegistryTest, Rule10_KindsThatAlternateStillTravelInBatches) {
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

TEST_F(FailbackRegistryTest, Rule10_TheServersRetryDelayIsHonoured) {
  Start();
  fake_->registers.Answer(WithRetryDelay(
      Refusal(registry::v1::ERROR_REASON_OVERLOADED, "busy"), absl::Milliseconds(1234)));
  Register("a");
  Advance(absl::Milliseconds(1233));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->registers.request_count(), 2);
}

TEST_F(FailbackRegistryTest, Rule10_TheRegistrysBatchLimitIsKept) {
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

TEST_F(FailbackRegistryTest, Rule12_DrainLetsOwedUnregistersFinishAndClosesTheSession) {
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

TEST_F(FailbackRegistryTest, Rule12_DrainTakesNoNewIntents) {
  Start();
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  EXPECT_EQ(ReasonOf(Register("a").get().status()), registry::v1::ERROR_REASON_DRAINING);
  Answer<agent::v1::DrainResponse> again;
  registry_->Drain(absl::Seconds(10), again.Catch());
  EXPECT_EQ(ReasonOf(again.get().status()), registry::v1::ERROR_REASON_DRAINING);
}

TEST_F(FailbackRegistryTest, Rule12_DrainEndsAtItsDeadlineAndTellsWhatIsOwed) {
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
}

TEST_F(FailbackRegistryTest, Rule12_DrainAnswersWhoeverWaitsForAnAcknowledgement) {
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

TEST_F(FailbackRegistryTest, Rule13_TheBoundOfIntentsIsAnErrorToTheCaller) {
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

// --- Rule 15.

TEST_F(FailbackRegistryTest, Rule15_DestructionAnswersEveryCallUnderWay) {
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

TEST_F(FailbackRegistryTest, Rule15_DestructionWithRetriesWaitingLeavesTheWheelEmpty) {
  Start();
  auto listener = std::make_shared<RecordingListener>();
  auto stream = Subscribe(listener);
  fake_->subscriptions()[0]->End(absl::InternalError("broken"));
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  OpenLocal("app");
  EXPECT_GE(timer_->pending(), 4);
  registry_.reset();
  EXPECT_EQ(timer_->pending(), 0);
  EXPECT_EQ(listener->end()->code(), absl::StatusCode::kCancelled);
}

TEST_F(FailbackRegistryTest, Rule15_ACallbackMayDestroyTheRegistry) {
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

TEST_F(FailbackRegistryTest, Rule15_ACallbackMayDestroyTheRegistryWithinTheCallItself) {
  Start();
  registry_->Register(MakeRegister({MakeInstance("a")}),
                      [&](absl::StatusOr<RegisterResponse>) { registry_.reset(); });
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(FailbackRegistryTest, Rule15_ATimerTaskMayLeadToDestruction) {
  Start();
  fake_->registers.Answer(absl::InternalError("once"));
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  registry_->Register(request, [&](absl::StatusOr<RegisterResponse>) { registry_.reset(); });
  Advance(absl::Seconds(1));
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(FailbackRegistryTest, Rule15_CallbacksMayCallBackIn) {
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

TEST_F(FailbackRegistryTest, WaitForAcknowledgedOutlivesAnOutage) {
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

TEST_F(FailbackRegistryTest, WaitForWhatIsAlreadyAcknowledgedAnswersAtOnce) {
  Start();
  Register("a");
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(Register(request).get()->results(0).state(), INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

// --- The operator.

TEST_F(FailbackRegistryTest, PendingRowsTellEverything) {
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

TEST_F(FailbackRegistryTest, RetryNamesAnUnknownIdAndDoesNothing) {
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  const auto result = registry_->Retry({"register default/orders/a", "register default/orders/x"});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(result.status().message().find("register default/orders/x"), std::string::npos);
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(FailbackRegistryTest, RetryDoesNotWait) {
  Start();
  fake_->registers.Answer(absl::InternalError("no"));
  Register("a");
  EXPECT_EQ(*registry_->Retry({"register default/orders/a"}), 1);
  EXPECT_EQ(fake_->registers.request_count(), 2);
  Advance(absl::Seconds(60));
  EXPECT_EQ(fake_->registers.request_count(), 2) << "the timeout on the wheel was cancelled";
}

TEST_F(FailbackRegistryTest, CancelGivesUpUntilANewIntent) {
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  EXPECT_EQ(*registry_->Cancel({"register default/orders/a"}), 1);
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

TEST_F(FailbackRegistryTest, CancelLetsACallInFlightFinishAndKeepsItTheOnlyOne) {
  Start();
  fake_->registers.Hold();
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto waiting = Register(request);
  EXPECT_EQ(*registry_->Cancel({}), 1);
  EXPECT_EQ(waiting.item().code(), absl::StatusCode::kCancelled);
  Register("a", 2);
  EXPECT_EQ(fake_->registers.held_count(), 1) << "two calls of one key in flight";
  fake_->registers.Release();
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 2);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

// --- Local sessions.

TEST_F(FailbackRegistryTest, ALocalSessionThatIsNotRenewedTakesItsInstancesAlong) {
  Start();
  const std::string session = OpenLocal("app", 10);
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(session);
  Register(request);
  Register("detached");
  ServiceInstance persistent = MakeInstance("persistent");
  persistent.set_persistent(true);
  RegisterRequest stays = MakeRegister({persistent});
  stays.set_session_id(session);
  Register(stays);
  Advance(absl::Seconds(9));
  KeepAliveRequest renewal;
  renewal.set_session_id(session);
  Answer<KeepAliveResponse> renewed;
  registry_->KeepAlive(renewal, renewed.Catch());
  EXPECT_TRUE(renewed.get().ok());
  Advance(absl::Seconds(9));
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  EXPECT_EQ(registry_->local_sessions(), 1);
  Advance(absl::Seconds(1));
  EXPECT_EQ(registry_->local_sessions(), 0);
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.last_request().deregistrations(0).key().instance_id(), "a");
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 2);
  Answer<KeepAliveResponse> lost;
  registry_->KeepAlive(renewal, lost.Catch());
  EXPECT_EQ(ReasonOf(lost.get().status()), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_EQ(ReasonOf(Register(request).get().status()), registry::v1::ERROR_REASON_SESSION_UNKNOWN);
}

TEST_F(FailbackRegistryTest, ALocalSessionEndsDuringAnOutageAndItsUnregisterIsOwed) {
  Start();
  const std::string session = OpenLocal("app", 10);
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(session);
  Register(request);
  GoAway();
  Advance(absl::Seconds(20));
  EXPECT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].id(), "unregister default/orders/a");
  Back("session-of-inc");
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
}

TEST_F(FailbackRegistryTest, AnInstanceTakenOverByAnotherSessionStaysWithIt) {
  Start();
  const std::string old_session = OpenLocal("old", 10), new_session = OpenLocal("new", 100);
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(old_session);
  Register(request);
  request.set_session_id(new_session);
  Register(request);
  Advance(absl::Seconds(20));
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 1);
}

TEST_F(FailbackRegistryTest, AReopenedLocalSessionIsTheSame) {
  Start();
  const std::string first = OpenLocal("app", 10);
  Advance(absl::Seconds(5));
  EXPECT_EQ(OpenLocal("app", 10), first);
  Advance(absl::Seconds(7));
  EXPECT_EQ(registry_->local_sessions(), 1) << "opening again renews";
}

// --- List.

TEST_F(FailbackRegistryTest, ListAsksTheRegistryAndAnswersFromMemoryWhileThatIsAway) {
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

TEST_F(FailbackRegistryTest, ListFromMemoryPages) {
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

}  // namespace
}  // namespace failback
