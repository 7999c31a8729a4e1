// The rules of the failback core about intents (1 to 4), one by one. docs/design.md ("Invariants")
// refers to these tests, and to those of failback_retry_test and failback_resync_test.

#include <algorithm>
#include <string>

#include "registry/base/trace_context.h"
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
  EXPECT_EQ(timer_->pending(), 1) << "the old retry is still there beside the session's timeout";
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
  const absl::Status late = Register(registration).item();
  EXPECT_EQ(ReasonOf(late), registry::v1::ERROR_REASON_SUPERSEDED);
  // The session's own: its client takes a higher number.
  EXPECT_EQ(ReasonMetadata(late, "rank"), "1");
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
  registration.mutable_registrations(0)->set_generation(2);
  EXPECT_EQ(ReasonOf(Register(registration).item()), registry::v1::ERROR_REASON_GENERATION_REUSED);
  registration.mutable_registrations(0)->set_generation(3);
  EXPECT_TRUE(Register(registration).item().ok());
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 1);
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
