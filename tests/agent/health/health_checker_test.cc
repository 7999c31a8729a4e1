#include "agent/health/health_checker.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "retry/simulated_clock.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

TEST(CheckCounterTest, RisesAndFallsAfterSoManyInARow) {
  CheckCounter counter(/*rise=*/2, /*fall=*/3);
  EXPECT_EQ(counter.state(), CheckState::kUnknown);
  EXPECT_FALSE(counter.Count(true));
  EXPECT_FALSE(counter.Count(false));  // breaks the row
  EXPECT_FALSE(counter.Count(true));
  EXPECT_EQ(counter.state(), CheckState::kUnknown);
  EXPECT_TRUE(counter.Count(true));
  EXPECT_EQ(counter.state(), CheckState::kPassing);
  EXPECT_FALSE(counter.Count(false));
  EXPECT_FALSE(counter.Count(false));
  EXPECT_FALSE(counter.Count(true));
  EXPECT_FALSE(counter.Count(false));
  EXPECT_FALSE(counter.Count(false));
  EXPECT_EQ(counter.state(), CheckState::kPassing);
  EXPECT_TRUE(counter.Count(false));
  EXPECT_EQ(counter.state(), CheckState::kCritical);
  EXPECT_FALSE(counter.Count(false));
  EXPECT_FALSE(counter.Count(true));
  EXPECT_TRUE(counter.Count(true));
  EXPECT_FALSE(counter.Count(true));
}

TEST(CheckCounterTest, TheFirstVerdictMayBeCritical) {
  CheckCounter counter(/*rise=*/1, /*fall=*/1);
  EXPECT_TRUE(counter.Count(false));
  EXPECT_EQ(counter.state(), CheckState::kCritical);
}

// Counts, and keeps what waits for its answer.
class FakeProbe final : public Probe {
 public:
  struct Calls {
    int runs = 0;
    int cancels = 0;
    // Not set: tries wait.
    std::optional<absl::Status> answer;
    std::vector<Done> waiting;
  };
  explicit FakeProbe(Calls* calls) : calls_(calls) {}

  void Run(Done done) override {
    ++calls_->runs;
    if (calls_->answer.has_value()) return std::move(done)(*calls_->answer);
    calls_->waiting.push_back(std::move(done));
  }
  void Cancel() override { ++calls_->cancels; }

 private:
  Calls* const calls_;
};

class HealthCheckerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    timer_ = NewTimer(&clock_, absl::Milliseconds(10));
    options_.interval = absl::Seconds(10);
    options_.timeout = absl::Seconds(1);
  }

  void Start() {
    checker_ = HealthChecker::Start(timer_.get(), std::make_unique<FakeProbe>(&calls_), options_,
                                    [this] { changes_.push_back(checker_->state()); });
    clock_.Advance(absl::Milliseconds(10));
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  HealthChecker::Options options_;
  FakeProbe::Calls calls_;
  std::vector<CheckState> changes_;
  std::unique_ptr<HealthChecker> checker_;
};

TEST_F(HealthCheckerTest, TriesAtOnceAndThenAtTheInterval) {
  calls_.answer = absl::OkStatus();
  Start();
  EXPECT_EQ(calls_.runs, 1);
  EXPECT_EQ(checker_->state(), CheckState::kPassing);
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(calls_.runs, 1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(calls_.runs, 2);
  clock_.Advance(absl::Seconds(100));
  EXPECT_EQ(calls_.runs, 12);
  EXPECT_EQ(changes_, std::vector<CheckState>{CheckState::kPassing});
  EXPECT_EQ(checker_->snapshot().passes, 12u);
}

TEST_F(HealthCheckerTest, FallsAndRisesAndKeepsTheLastError) {
  options_.rise = 2;
  options_.fall = 2;
  calls_.answer = absl::UnavailableError("refused");
  Start();
  EXPECT_EQ(checker_->state(), CheckState::kUnknown);
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(checker_->state(), CheckState::kCritical);
  EXPECT_EQ(checker_->snapshot().last_error, "refused");
  EXPECT_EQ(checker_->snapshot().failures, 2u);
  calls_.answer = absl::OkStatus();
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(checker_->state(), CheckState::kCritical);
  EXPECT_EQ(checker_->snapshot().last_error, "");
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(changes_, (std::vector<CheckState>{CheckState::kCritical, CheckState::kPassing}));
}

TEST_F(HealthCheckerTest, ATryThatTakesTooLongHasFailedAndItsLateAnswerDoesNotCount) {
  options_.fall = 1;
  Start();
  ASSERT_EQ(calls_.waiting.size(), 1u);
  clock_.Advance(absl::Milliseconds(980));
  EXPECT_EQ(checker_->state(), CheckState::kUnknown);
  clock_.Advance(absl::Milliseconds(30));
  EXPECT_EQ(checker_->state(), CheckState::kCritical);
  EXPECT_EQ(calls_.cancels, 1);
  EXPECT_EQ(checker_->snapshot().last_error, "no answer within 1s");
  std::move(calls_.waiting[0])(absl::OkStatus());
  EXPECT_EQ(checker_->snapshot().passes, 0u);
  clock_.Advance(absl::Seconds(9));
  ASSERT_EQ(calls_.waiting.size(), 2u);
  std::move(calls_.waiting[1])(absl::OkStatus());
  EXPECT_EQ(checker_->state(), CheckState::kPassing);
}

TEST_F(HealthCheckerTest, ATimeoutAsLongAsTheIntervalCountsEveryTry) {
  options_.timeout = options_.interval;
  options_.fall = 3;
  Start();
  clock_.Advance(absl::Seconds(31));
  EXPECT_EQ(checker_->snapshot().failures, 3u);
  EXPECT_EQ(checker_->state(), CheckState::kCritical);
  EXPECT_EQ(calls_.runs, 4);
}

TEST_F(HealthCheckerTest, NothingIsToldAfterTheEnd) {
  Start();
  checker_.reset();
  std::move(calls_.waiting[0])(absl::OkStatus());
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(calls_.runs, 1);
  EXPECT_TRUE(changes_.empty());
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(HealthCheckerTest, WithoutAProbeTheProgramReports) {
  options_.rise = options_.fall = 1;
  options_.interval = absl::Seconds(30);
  checker_ = HealthChecker::Start(timer_.get(), nullptr, options_,
                                  [this] { changes_.push_back(checker_->state()); });
  clock_.Advance(absl::Seconds(29));
  EXPECT_EQ(checker_->state(), CheckState::kUnknown);
  checker_->Report(absl::OkStatus());
  EXPECT_EQ(checker_->state(), CheckState::kPassing);
  clock_.Advance(absl::Seconds(29));
  checker_->Report(absl::OkStatus());  // holds for 30 s more
  clock_.Advance(absl::Seconds(29));
  EXPECT_EQ(checker_->state(), CheckState::kPassing);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(checker_->state(), CheckState::kCritical);
  EXPECT_EQ(checker_->snapshot().last_error, "nothing was reported for 30s");
  checker_->Report(absl::OkStatus());
  EXPECT_EQ(checker_->state(), CheckState::kPassing);
  checker_->Report(absl::UnavailableError("no database"));
  EXPECT_EQ(checker_->state(), CheckState::kCritical);
  EXPECT_EQ(checker_->snapshot().last_error, "no database");
}

TEST_F(HealthCheckerTest, AProgramThatNeverReportsIsCriticalAfterTheTtl) {
  options_.fall = 1;
  checker_ = HealthChecker::Start(timer_.get(), nullptr, options_, [] {});
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(checker_->state(), CheckState::kCritical);
}

}  // namespace
}  // namespace failback
