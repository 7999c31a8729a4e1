// The rule of the failback core about its end (15): whoever waits is answered, and nothing follows.

#include <functional>

#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACKNOWLEDGED;

using FailbackEndTest = FailbackTest;

TEST_F(FailbackEndTest, Rule15_DestructionAnswersEveryCallUnderWay) {
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

TEST_F(FailbackEndTest, Rule15_DestructionAnswersADrainUnderWay) {
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

TEST_F(FailbackEndTest, Rule15_DestructionWithRetriesWaitingLeavesTheWheelEmpty) {
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

TEST_F(FailbackEndTest, Rule15_ACallbackMayDestroyTheRegistry) {
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

TEST_F(FailbackEndTest, Rule15_NoEventFollowsACallbackThatHasDestroyedTheRegistry) {
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

TEST_F(FailbackEndTest, Rule15_ACallbackMayDestroyTheRegistryWithinTheCallItself) {
  Start();
  registry_->Register(MakeRegister({MakeInstance("a")}),
                      [&](absl::StatusOr<RegisterResponse>) { registry_.reset(); });
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(FailbackEndTest, Rule15_ATimerTaskMayLeadToDestruction) {
  Start();
  fake_->registers.Answer(absl::InternalError("once"));
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  registry_->Register(request, [&](absl::StatusOr<RegisterResponse>) { registry_.reset(); });
  Advance(absl::Seconds(1));
  EXPECT_EQ(registry_, nullptr);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(FailbackEndTest, Rule15_CallbacksMayCallBackIn) {
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

}  // namespace
}  // namespace failback
