#include "retry/failback_invoker.h"

#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "retry/simulated_clock.h"

namespace failback {
namespace {

class FailbackInvokerTest : public ::testing::Test {
 protected:
  FailbackInvokerTest() {
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    options.tick_duration = absl::Seconds(1);
    options.ticks_per_wheel = 32;
    timer_ = HashedWheelTimer::Create(options).value();
    options_.timer = timer_.get();
  }

  std::unique_ptr<FailbackInvoker> NewInvoker() {
    return FailbackInvoker::Create(options_).value();
  }

  // A call that notes when it was made and answers at once.
  FailbackInvoker::Call Answering(std::vector<absl::Status> answers) {
    return [this, answers = std::move(answers)](const FailbackInvoker::Done& done) {
      const size_t attempt = attempts_.size();
      attempts_.push_back(clock_.NowNanos() / 1000000000);
      done(attempt < answers.size() ? answers[attempt] : answers.back());
    };
  }

  std::function<void(const absl::Status&)> Finished() {
    return [this](const absl::Status& status) { finished_.push_back(status); };
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FailbackInvoker::Options options_;
  std::vector<int64_t> attempts_;
  std::vector<absl::Status> finished_;
};

TEST_F(FailbackInvokerTest, SucceedsAtOnce) {
  auto invoker = NewInvoker();
  invoker->Invoke(Answering({absl::OkStatus()}), Finished());
  EXPECT_EQ(attempts_, (std::vector<int64_t>{0}));
  EXPECT_EQ(finished_, std::vector<absl::Status>{absl::OkStatus()});
  EXPECT_EQ(invoker->pending(), 0);
}

TEST_F(FailbackInvokerTest, RetriesThreeTimesEveryFiveSecondsAsDubbo) {
  auto invoker = NewInvoker();
  invoker->Invoke(Answering({absl::UnavailableError("away")}), Finished());
  EXPECT_EQ(invoker->pending(), 1);
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(attempts_, (std::vector<int64_t>{0, 5, 10, 15}));
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0], absl::UnavailableError("away"));
  EXPECT_EQ(invoker->pending(), 0);
}

TEST_F(FailbackInvokerTest, AnAsynchronousFailureIsRetriedToo) {
  auto invoker = NewInvoker();
  std::vector<FailbackInvoker::Done> under_way;
  invoker->Invoke([&](FailbackInvoker::Done done) { under_way.push_back(std::move(done)); },
                  Finished());
  ASSERT_EQ(under_way.size(), 1u);
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(under_way.size(), 1u) << "never two attempts at once";
  under_way[0](absl::DeadlineExceededError("late"));
  under_way[0](absl::OkStatus());  // a second answer of the same attempt
  EXPECT_TRUE(finished_.empty());
  clock_.Advance(absl::Seconds(5));
  ASSERT_EQ(under_way.size(), 2u);
  under_way[1](absl::OkStatus());
  EXPECT_EQ(finished_, std::vector<absl::Status>{absl::OkStatus()});
  EXPECT_EQ(invoker->pending(), 0);
}

TEST_F(FailbackInvokerTest, OverflowIsToldToTheCaller) {
  options_.max_pending = 2;
  auto invoker = NewInvoker();
  for (int i = 0; i < 3; ++i) {
    invoker->Invoke(Answering({absl::UnavailableError("away")}), Finished());
  }
  EXPECT_EQ(invoker->pending(), 2);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(finished_[0].message().find("away"), absl::string_view::npos) << finished_[0];
}

TEST_F(FailbackInvokerTest, WhatIsNotRetryableFailsAtOnce) {
  options_.retryable = [](const absl::Status& status) {
    return status.code() != absl::StatusCode::kInvalidArgument;
  };
  auto invoker = NewInvoker();
  invoker->Invoke(Answering({absl::UnavailableError("away"), absl::InvalidArgumentError("bad")}),
                  Finished());
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(attempts_.size(), 2u);
  EXPECT_EQ(finished_, std::vector<absl::Status>{absl::InvalidArgumentError("bad")});
}

TEST_F(FailbackInvokerTest, DestructionFinishesEverythingOnceWithCancelled) {
  auto invoker = NewInvoker();
  std::optional<FailbackInvoker::Done> under_way;
  invoker->Invoke([&](FailbackInvoker::Done done) { under_way = std::move(done); }, Finished());
  invoker->Invoke(Answering({absl::UnavailableError("away")}), Finished());
  invoker.reset();
  ASSERT_EQ(finished_.size(), 2u);
  for (const auto& status : finished_) EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  (*under_way)(absl::OkStatus());
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(finished_.size(), 2u);
  EXPECT_EQ(attempts_.size(), 1u);
}

TEST_F(FailbackInvokerTest, InvokesFromWithinCallsAndCallbacks) {
  auto invoker = NewInvoker();
  invoker->Invoke(Answering({absl::OkStatus()}), [&](const absl::Status&) {
    invoker->Invoke(Answering({absl::OkStatus()}), Finished());
  });
  EXPECT_EQ(attempts_.size(), 2u);
  EXPECT_EQ(finished_.size(), 1u);
}

TEST_F(FailbackInvokerTest, BadOptionsAreNamed) {
  options_.max_pending = 0;
  EXPECT_EQ(FailbackInvoker::Create(options_).status(),
            absl::InvalidArgumentError("max_pending: 0 is not 1 or more"));
  options_.max_pending = 1;
  options_.retry.retry_times = -2;
  EXPECT_EQ(FailbackInvoker::Create(options_).status(),
            absl::InvalidArgumentError("retry.retry_times: -2 is not -1 (for ever) or more"));
}

}  // namespace
}  // namespace failback
