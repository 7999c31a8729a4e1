// The rules of the failback core about attempts that fail (5 to 7): retried, parked, or handed back
// to a caller who asked to check.

#include <string>

#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACKNOWLEDGED;

class FailbackRetryTest : public FailbackTest {};

// --- Rule 5: what each code does is in status_policy_test; here that it is done.

TEST_F(FailbackRetryTest, Rule5_RetriesWithTheComputedDelays) {
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

TEST_F(FailbackRetryTest, Rule5_FixedPeriodAndRetryTimesAsInDubbo) {
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
  EXPECT_EQ(registry_->Pending()[0].times(), 4);
  Advance(absl::Minutes(5));
  EXPECT_EQ(fake_->registers.request_count(), 4) << "exactly retry_times retries";
  EXPECT_EQ(EventNames(), (std::vector<std::string>{"retrying register default/orders/a",
                                                    "parked register default/orders/a"}));
}

TEST_F(FailbackRetryTest, Rule5_NotFoundOnUnregisterIsDone) {
  Start();
  fake_->unregisters.Answer(absl::NotFoundError("not here"));
  Unregister("a");
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRetryTest, Rule5_AnUnregisterThatWasNotSentIsNotDoneByNotFound) {
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

TEST_F(FailbackRetryTest, Rule5_OneBadItemDoesNotParkItsBatch) {
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

TEST_F(FailbackRetryTest, Rule5_AnAnswerWithTooFewResultsIsAFailureOfTheRest) {
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

TEST_F(FailbackRetryTest, Rule6_ParkedIsLoudAndShown) {
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

TEST_F(FailbackRetryTest, Rule6_ParkedIsReArmedByRetry) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("not you"));
  Register("a");
  EXPECT_EQ(*registry_->Retry({"register default/orders/a"}), 1);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRetryTest, Rule6_ParkedIsReArmedByANewIntentEvenWithTheSamePayload) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("not you"));
  Register("a");
  Register("a");
  EXPECT_EQ(fake_->registers.request_count(), 2);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRetryTest, Rule6_ParkedIsReArmedByReconnect) {
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

TEST_F(FailbackRetryTest, Rule6_AReArmedTaskHasAllItsRetriesAgain) {
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

// The bound of a wheel is for new timeouts. What was accepted goes on, in a full one too: retries,
// waits for a token, renewals, leases of local clients, the comparison.
TEST_F(FailbackRetryTest, Rule6_AFullWheelParksNothingAndHoldsNothingUp) {
  HashedWheelTimer::Options full;
  full.clock = &clock_;
  full.tick_duration = absl::Milliseconds(1);
  full.max_pending_timeouts = 1;
  timer_ = HashedWheelTimer::Create(std::move(full)).value();
  ASSERT_TRUE(timer_->NewTimeout([] {}, absl::Hours(1000)).ok());
  options_.timer = timer_.get();
  options_.retry.retry_period = absl::Seconds(1);
  options_.retries_per_second = 1;
  options_.retry_burst = 1;
  options_.anti_entropy_interval = absl::Seconds(10);
  Back("session-1");
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  for (const char* id : {"a", "b", "c"}) Register(id);
  Advance(absl::Seconds(10));
  EXPECT_GE(fake_->registers.request_count(), 10) << "retried, as there are tokens";
  EXPECT_GE(fake_->keep_alives.request_count(), 3);
  EXPECT_EQ(registry_->UpstreamStatus().parked(), 0);
  Back("session-1");
  Advance(absl::Seconds(10));
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 3);
  EXPECT_GE(fake_->lists.request_count(), 1);
  RegisterRequest owned = MakeRegister({MakeInstance("d")});
  owned.set_session_id(OpenLocal("client", 10));
  Register(owned);
  Advance(absl::Seconds(11));
  EXPECT_EQ(fake_->unregisters.request_count(), 1) << "its owner was not heard of";
}

// --- Rule 7.

RegisterRequest Checked(const ServiceInstance& instance) {
  RegisterRequest request = MakeRegister({instance});
  request.set_check(true);
  return request;
}

TEST_F(FailbackRetryTest, Rule7_CheckCompletesWithTheFirstAttempt) {
  Start();
  fake_->registers.Hold();
  const auto answer = Register(Checked(MakeInstance("a")));
  EXPECT_FALSE(answer.done());
  fake_->registers.Release();
  EXPECT_TRUE(answer.item().ok());
  EXPECT_EQ(answer.get()->results(0).state(), INTENT_STATE_ACKNOWLEDGED);
}

TEST_F(FailbackRetryTest, Rule7_AFailedCheckIsReturnedAndNothingIsQueued) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("no"));
  EXPECT_EQ(Register(Checked(MakeInstance("a"))).item().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(registry_->Pending().size(), 0);
  Advance(absl::Minutes(1));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 0) << "it cannot have landed";
}

TEST_F(FailbackRetryTest, Rule7_ACheckThatMayHaveLandedOwesAnUnregister) {
  Start();
  fake_->registers.Answer(absl::DeadlineExceededError("late"));
  EXPECT_EQ(Register(Checked(MakeInstance("a"))).item().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_GT(fake_->unregisters.last_request().deregistrations(0).generation(),
            fake_->registers.last_request().registrations(0).generation());
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackRetryTest, Rule7_AFailedCheckRestoresWhatWasThere) {
  Start();
  Register("a", 1);
  fake_->registers.Answer(absl::DeadlineExceededError("late"));
  EXPECT_FALSE(Register(Checked(MakeInstance("a", 2))).item().ok());
  ASSERT_EQ(fake_->registers.request_count(), 3);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 3);
}

TEST_F(FailbackRetryTest, Rule7_CheckWhileTheRegistryIsAwayFailsAtOnce) {
  GoAway();
  Start();
  EXPECT_EQ(Register(Checked(MakeInstance("a"))).item().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(registry_->Pending().size(), 0);
  Back();
  Advance(absl::Seconds(10));
  EXPECT_EQ(fake_->registers.request_count(), 0);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

TEST_F(FailbackRetryTest, Rule7_ACheckReplacedByACheckCompensatesForBoth) {
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

TEST_F(FailbackRetryTest, Rule7_ACheckedUnregisterThatFailsLeavesTheInstanceDesired) {
  Start();
  Register("a", 1);
  fake_->unregisters.Answer(absl::DeadlineExceededError("late"));
  UnregisterRequest request = MakeUnregister("a");
  request.set_check(true);
  EXPECT_FALSE(Unregister(request).item().ok());
  EXPECT_EQ(fake_->registers.request_count(), 2) << "put back, as it may be gone";
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackRetryTest, Rule7_AFailedCheckBringsNothingBackOfASessionThatHasEnded) {
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

}  // namespace
}  // namespace failback
