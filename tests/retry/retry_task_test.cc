#include "retry/retry_task.h"

#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "retry/simulated_clock.h"

namespace failback {
namespace {

class RetryTaskTest : public testing::Test {
 protected:
  RetryTaskTest() { MakeTimer(0); }

  void MakeTimer(int64_t max_pending) {
    task_.reset();
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    options.tick_duration = absl::Milliseconds(1);
    options.max_pending_timeouts = max_pending;
    timer_ = HashedWheelTimer::Create(std::move(options)).value();
  }
  void MakeTask() { task_ = std::make_unique<RetryTask>(timer_.get(), &policy_, &random_); }

  RetryTask::State Fail(std::optional<absl::Duration> server_delay = std::nullopt) {
    return task_->Failed(server_delay, [this] {
      if (task_ != nullptr && task_->Begin()) {
        ran_ms_.push_back(clock_.NowNanos() / 1000000);
        if (on_due_) on_due_();
      }
    });
  }
  // Every attempt fails, for ten hours.
  void FailAlways() {
    on_due_ = [this] { Fail(); };
    Fail();
    clock_.Advance(absl::Hours(10));
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  RetryPolicy policy_;
  Random random_ = [] { return 0.5; };
  std::unique_ptr<RetryTask> task_;
  std::vector<int64_t> ran_ms_;
  std::function<void()> on_due_;
};

TEST_F(RetryTaskTest, ThreeRetriesFollowTheFirstFailure) {
  policy_.retry_times = 3;
  policy_.retry_period = absl::Seconds(5);
  MakeTask();
  FailAlways();
  EXPECT_EQ(ran_ms_, (std::vector<int64_t>{5000, 10000, 15000}));
  EXPECT_EQ(task_->state(), RetryTask::State::kParked);
  EXPECT_EQ(task_->times(), 4);
}

TEST_F(RetryTaskTest, OneRetry) {
  policy_.retry_times = 1;
  policy_.retry_period = absl::Seconds(5);
  MakeTask();
  FailAlways();
  EXPECT_EQ(ran_ms_, (std::vector<int64_t>{5000}));
  EXPECT_EQ(task_->times(), 2);
}

TEST_F(RetryTaskTest, ZeroParksAtOnce) {
  policy_.retry_times = 0;
  MakeTask();
  FailAlways();
  EXPECT_TRUE(ran_ms_.empty());
  EXPECT_EQ(task_->state(), RetryTask::State::kParked);
  EXPECT_EQ(task_->times(), 1);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(RetryTaskTest, MinusOneNeverParks) {
  policy_.retry_times = -1;
  policy_.retry_period = absl::Seconds(5);
  MakeTask();
  FailAlways();
  EXPECT_EQ(ran_ms_.size(), 7200);
  EXPECT_EQ(task_->state(), RetryTask::State::kWaiting);
  EXPECT_EQ(task_->times(), 7201);
}

TEST_F(RetryTaskTest, BackoffGrowsWithTimes) {
  policy_.retry_times = 5;
  policy_.backoff = {absl::Milliseconds(100), 2.0, absl::Milliseconds(1000), 0.0};
  MakeTask();
  FailAlways();
  EXPECT_EQ(ran_ms_, (std::vector<int64_t>{100, 300, 700, 1500, 2500}));
}

TEST_F(RetryTaskTest, TheServersDelayOverridesPeriodAndBackoff) {
  policy_.retry_period = absl::Seconds(5);
  MakeTask();
  EXPECT_EQ(Fail(absl::Milliseconds(123)), RetryTask::State::kWaiting);
  EXPECT_EQ(task_->next_attempt_nanos(), 123000000);
  clock_.Advance(absl::Milliseconds(122));
  EXPECT_TRUE(ran_ms_.empty());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(ran_ms_, (std::vector<int64_t>{123}));
  Fail();
  EXPECT_EQ(task_->next_attempt_nanos(), 5123000000);
}

TEST_F(RetryTaskTest, TheServersDelayIsStretchedWhenItComesAgain) {
  policy_.retry_period = absl::Seconds(5);
  MakeTask();  // draws 0.5
  const auto wait = [&](std::optional<absl::Duration> asked) {
    const int64_t before = clock_.NowNanos();
    Fail(asked);
    return absl::Nanoseconds(task_->next_attempt_nanos() - before);
  };
  EXPECT_EQ(wait(absl::Seconds(1)), absl::Seconds(1));
  EXPECT_EQ(wait(absl::Seconds(1)), absl::Milliseconds(1500));
  EXPECT_EQ(wait(absl::Seconds(1)), absl::Seconds(2));
  EXPECT_EQ(wait(std::nullopt), absl::Seconds(5)) << "another failure";
  EXPECT_EQ(wait(absl::Seconds(1)), absl::Seconds(1)) << "starts again";
}

// What is retried was accepted: no caller waits for a refusal.
TEST_F(RetryTaskTest, AFullWheelTakesItBack) {
  policy_.retry_period = absl::Seconds(5);
  MakeTimer(1);
  ASSERT_TRUE(timer_->NewTimeout([] {}, absl::Hours(1)).ok());
  MakeTask();
  EXPECT_EQ(Fail(), RetryTask::State::kWaiting);
  EXPECT_EQ(timer_->pending(), 2);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(ran_ms_, (std::vector<int64_t>{5000}));
}

TEST_F(RetryTaskTest, AStoppedWheelParks) {
  MakeTask();
  timer_->Stop().IgnoreError();
  EXPECT_EQ(Fail(), RetryTask::State::kParked);
}

TEST_F(RetryTaskTest, DestructionTakesItOffTheWheel) {
  MakeTask();
  Fail();
  EXPECT_EQ(timer_->pending(), 1);
  task_.reset();
  EXPECT_EQ(timer_->pending(), 0);
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(ran_ms_.empty());
}

TEST_F(RetryTaskTest, FailingTwiceLeavesOneTimeout) {
  MakeTask();
  Fail();
  Fail();
  EXPECT_EQ(timer_->pending(), 1);
}

TEST_F(RetryTaskTest, RunNowCancelsTheTimeoutAndReArmsWhatIsParked) {
  policy_.retry_times = 2;
  policy_.retry_period = absl::Seconds(1);
  MakeTask();
  FailAlways();
  EXPECT_EQ(ran_ms_.size(), 2);
  task_->RunNow();
  EXPECT_EQ(task_->state(), RetryTask::State::kDue);
  EXPECT_EQ(task_->times(), 0);
  Fail();
  task_->RunNow();
  EXPECT_EQ(timer_->pending(), 0);
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(ran_ms_.size(), 2) << "the wheel's turn was taken by hand";
}

TEST_F(RetryTaskTest, WaitDoesNotCountAsAnAttempt) {
  policy_.retry_times = 1;
  MakeTask();
  Fail();
  EXPECT_EQ(task_->times(), 1);
  task_->RunNow();
  EXPECT_EQ(task_->Wait(absl::Seconds(2), [this] { ran_ms_.push_back(task_->Begin() ? 1 : 0); }),
            RetryTask::State::kWaiting);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(ran_ms_, (std::vector<int64_t>{1}));
  EXPECT_EQ(task_->times(), 1);
  EXPECT_EQ(Fail(), RetryTask::State::kParked);
}

TEST_F(RetryTaskTest, BeginIsTrueOnceAndNotWhenParked) {
  MakeTask();
  int begun = 0;
  task_->Failed(absl::Milliseconds(1), [&] {
    begun += task_->Begin();
    begun += task_->Begin();
  });
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(begun, 1);
  task_->Failed(absl::Milliseconds(1), [&] { begun += task_->Begin(); });
  task_->Park();
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(begun, 1);
}

TEST(RetryPolicyTest, BadValuesAreNamed) {
  RetryPolicy policy;
  EXPECT_TRUE(ValidateRetryPolicy("retry", policy).ok());
  policy.retry_times = -2;
  EXPECT_EQ(ValidateRetryPolicy("retry", policy).message(),
            "retry.retry_times: -2 is not -1 (for ever) or more");
  policy.retry_times = 0;
  policy.retry_period = absl::ZeroDuration();
  EXPECT_EQ(ValidateRetryPolicy("retry", policy).message(),
            "retry.retry_period: 0 is not above zero");
}

}  // namespace
}  // namespace failback
