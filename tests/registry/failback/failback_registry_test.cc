// The rules of the failback core about intents (1 to 8), one by one. docs/design.md ("Invariants")
// refers to these tests.

#include <algorithm>
#include <set>
#include <string>

#include "registry/trace_context.h"
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

TEST_F(FailbackRegistryTest, Rule1_ANewIntentHasAllItsRetries) {
  options_.retry.retry_times = 1;
  options_.retry.retry_period = absl::Seconds(1);
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a", 1);
  Advance(absl::Milliseconds(500));
  Register("a", 2);
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].times(), 1) << "what the old intent has tried counts on";
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_WAITING);
  Advance(absl::Milliseconds(999));
  EXPECT_EQ(fake_->registers.request_count(), 2);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->registers.request_count(), 3);
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
  ASSERT_TRUE(fake_->registers.Complete(RegisterResponse([] {
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
    *response.add_results()->mutable_status() = StatusToProto(Refusal(
        registry::v1::ERROR_REASON_SUPERSEDED, "older", {{"rank", "7"}, {"generation", "100"}}));
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
  fake_->registers.AnswerWith(
      [](const RegisterRequest& request) -> absl::StatusOr<RegisterResponse> {
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
  Unregister("bad");
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->registers.ClearRequests();
  Advance(absl::Seconds(4));
  EXPECT_EQ(fake_->registers.request_count(), 1) << "what has passed alone goes with others again";
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

TEST_F(FailbackRegistryTest, Rule7_AFailedCheckBringsNothingBackOfASessionThatHasEnded) {
  Start();
  const std::string session = OpenLocal("owner");
  RegisterRequest owned = MakeRegister({MakeInstance("a")});
  owned.set_session_id(session);
  Register(owned);
  fake_->registers.Hold();
  RegisterRequest check = MakeRegister({MakeInstance("a", 9090)});
  check.set_check(true);
  const auto answer = Register(check);
  CloseSessionRequest close;
  close.set_session_id(session);
  registry_->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>&) {});
  EXPECT_EQ(fake_->unregisters.request_count(), 0) << "another has taken the key over";
  fake_->registers.Complete(absl::PermissionDeniedError("no"));
  EXPECT_TRUE(absl::IsPermissionDenied(answer.item())) << answer.item();
  EXPECT_EQ(fake_->registers.request_count(), 2);
  EXPECT_EQ(fake_->unregisters.request_count(), 1) << "whose it was has gone";
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
}

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

TEST_F(FailbackRegistryTest, Rule8_WhatALostSessionHadIsPendingAgain) {
  Start();
  Register("a");
  EXPECT_EQ(registry_->Pending().size(), 0);
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->registers.Hold();
  Advance(absl::Seconds(4));
  EXPECT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 0);
  fake_->registers.Release();
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRegistryTest, Rule8_IsSentAgainInTheOrderInWhichItWasStated) {
  options_.max_calls_in_flight = 1;
  Start();
  std::vector<std::string> stated;
  for (int i = 0; i < 50; ++i) stated.push_back(absl::StrCat("i", i * 37 % 50));
  for (const std::string& id : stated) Register(id);
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->registers.ClearRequests();
  Advance(absl::Seconds(4));
  std::vector<std::string> sent;
  for (const auto& request : fake_->registers.requests()) {
    for (const auto& r : request.registrations()) sent.push_back(r.instance().key().instance_id());
  }
  EXPECT_EQ(sent, stated);
}

TEST_F(FailbackRegistryTest, Rule8_DeregistrationsAreSentAgainFirst) {
  options_.max_calls_in_flight = 1;
  Start();
  for (const char* id : {"a", "b", "c"}) Register(id);
  GoAway();
  Unregister("b");
  Advance(absl::Seconds(2));
  Back("session-2");
  std::vector<std::string> sent;
  fake_->registers.AnswerWith([&](const RegisterRequest& request) {
    RegisterResponse response;
    for (int i = 0; i < request.registrations_size(); ++i) response.add_results();
    sent.push_back("register");
    return response;
  });
  fake_->unregisters.AnswerWith([&](const UnregisterRequest&) {
    UnregisterResponse response;
    response.add_results();
    sent.push_back("unregister");
    return response;
  });
  Advance(absl::Seconds(2));
  EXPECT_EQ(sent, (std::vector<std::string>{"unregister", "register"}));
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
  Back("session-1");
  Start();
  Register("a");
  fake_->registers.ClearRequests();
  GoAway();
  Advance(absl::Seconds(4));
  Back("session-1");  // which has outlived the loss
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
  const auto all = [&] {
    return fake_->opens.request_count() + fake_->keep_alives.request_count() +
           fake_->registers.request_count();
  };
  const size_t before = all();
  for (int i = 100; i < 200; ++i) Register(absl::StrCat("i", i));
  Advance(absl::Seconds(30));
  const size_t calls = all() - before;
  EXPECT_GE(calls, 25);
  EXPECT_LE(calls, 45);
}

TEST_F(FailbackRegistryTest, Rule8_ATombstoneIsNotSentAgain) {
  Start();
  const std::string session = OpenLocal("client", 600);
  RegisterRequest there = MakeRegister({MakeInstance("a")});
  there.set_session_id(session);
  there.mutable_registrations(0)->set_generation(1);
  Register(there);
  UnregisterRequest gone = MakeUnregister("a");
  gone.set_session_id(session);
  gone.mutable_deregistrations(0)->set_generation(2);
  Unregister(gone);
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  EXPECT_EQ(fake_->opens.request_count(), 2);
  EXPECT_EQ(fake_->unregisters.request_count(), 1) << "the registry knows that it is gone";
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRegistryTest, ATraceStaysWithItsIntentUntilItIsAcknowledged) {
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  Start();
  std::vector<std::string> traces;
  absl::Status answer = absl::AbortedError("later");
  fake_->registers.AnswerWith(
      [&](const RegisterRequest& request) -> absl::StatusOr<RegisterResponse> {
        traces.push_back(CurrentTrace());
        if (!answer.ok()) return answer;
        RegisterResponse response;
        for (int i = 0; i < request.registrations_size(); ++i) response.add_results();
        return response;
      });
  {
    const ScopedTrace scope(trace);
    Register("a");
  }
  Advance(absl::Seconds(5));
  EXPECT_GE(traces.size(), 2u);  // sent, and tried again by the wheel
  answer = absl::OkStatus();
  Advance(absl::Seconds(60));
  EXPECT_EQ(EventNames().back(), "acknowledged register default/orders/a");
  EXPECT_EQ(events_.back().traceparent, trace);
  EXPECT_EQ(std::count(traces.begin(), traces.end(), trace), static_cast<int>(traces.size()));
  // The next intent is another call's, and a batch is of many.
  traces.clear();
  Register("a", 81);
  {
    const ScopedTrace scope(trace);
    Register(MakeRegister({MakeInstance("b"), MakeInstance("c")}));
  }
  EXPECT_EQ(traces, (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace failback
