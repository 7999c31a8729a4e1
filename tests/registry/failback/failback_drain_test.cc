// The rule of the failback core about drains (12).

#include <string>

#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACKNOWLEDGED;

using FailbackDrainTest = FailbackTest;

TEST_F(FailbackDrainTest, Rule12_DrainLetsOwedUnregistersFinishAndClosesTheSession) {
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

TEST_F(FailbackDrainTest, Rule12_DrainClosesTheSessionWhenTheCallsInFlightHaveEnded) {
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

TEST_F(FailbackDrainTest, Rule12_DrainTakesNoNewIntents) {
  Start();
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  EXPECT_EQ(ReasonOf(Register("a").get().status()), registry::v1::ERROR_REASON_DRAINING);
  const auto listener = std::make_shared<RecordingListener>();
  const auto stream = Subscribe(listener);
  ASSERT_TRUE(listener->end().has_value());
  EXPECT_EQ(ReasonOf(*listener->end()), registry::v1::ERROR_REASON_DRAINING);
}

TEST_F(FailbackDrainTest, Rule12_OneWaitsForADrainAtATime) {
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

TEST_F(FailbackDrainTest, Rule12_DrainDoesNotWaitForWhatIsParked) {
  Start();
  Register("a");
  fake_->unregisters.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  Unregister("a");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  ASSERT_TRUE(drained.done()) << "nobody is there to re-arm it";
  EXPECT_EQ(drained.get()->remaining(), 0);
}

TEST_F(FailbackDrainTest, Rule12_TheEndOfTheSessionCoversWhatIsParked) {
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

TEST_F(FailbackDrainTest, Rule12_WhatTheRegistryNeverTookCountsNowhere) {
  fake_->registers.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  Start();
  Register("denied");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(10), drained.Catch());
  EXPECT_EQ(drained.get()->unregistered(), 0);
  EXPECT_EQ(drained.get()->remaining(), 0);
}

TEST_F(FailbackDrainTest, Rule12_WhatMayHaveReachedTheRegistryRemains) {
  fake_->registers.AnswerWith([](const auto&) { return absl::DeadlineExceededError("late"); });
  fake_->closes.Hold();
  Start();
  Register("a");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  Advance(absl::Seconds(1));
  EXPECT_EQ(drained.get()->remaining(), 1);
}

TEST_F(FailbackDrainTest, Rule12_ADrainIsCompletedAfterItsDeadline) {
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

TEST_F(FailbackDrainTest, Rule12_ASessionThatEndsAfterTheDeadlineIsNoLongerShown) {
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

TEST_F(FailbackDrainTest, Rule12_DrainLeavesPersistentInstancesAndCountsThemByThemselves) {
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

TEST_F(FailbackDrainTest, Rule12_DrainEndsAtItsDeadlineAndTellsWhatIsOwed) {
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

TEST_F(FailbackDrainTest, Rule12_ADrainNamesWhyTheSessionDoesNotEnd) {
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

TEST_F(FailbackDrainTest, Rule12_DrainAnswersWhoeverWaitsForAnAcknowledgement) {
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

}  // namespace
}  // namespace failback
