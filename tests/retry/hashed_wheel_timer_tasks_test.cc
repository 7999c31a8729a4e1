// What tasks may do to their timer, and what it returns when it is stopped, under a simulated
// clock.

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/retry/timer_fixture.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// From inside a task.

TEST_F(HashedWheelTimerTest, ATaskMayAddCancelRescheduleAndAsk) {
  auto timer = Create();
  Timeout self, moved, cancelled;
  moved = timer->NewTimeout(Note("moved"), absl::Seconds(9)).value();
  cancelled = timer->NewTimeout(Note("cancelled"), absl::Seconds(1)).value();
  self = timer
             ->NewTimeout(
                 [&] {
                   EXPECT_TRUE(self.IsExpired());
                   EXPECT_FALSE(self.Cancel());
                   EXPECT_FALSE(self.Reschedule(absl::Seconds(1)));
                   self.Wait();  // returns, though the task is running: it is this one
                   EXPECT_TRUE(cancelled.Cancel());
                   EXPECT_TRUE(moved.Reschedule(absl::ZeroDuration()));
                   timer->NewTimeout(Note("new"), absl::Milliseconds(150)).value();
                   EXPECT_EQ(timer->pending(), 2);
                 },
                 absl::Milliseconds(500))
             .value();
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(ran_, ElementsAre("moved@600", "new@700"));
}

TEST_F(HashedWheelTimerTest, StopFromATaskIsAnError) {
  auto timer = Create();
  std::optional<absl::Status> status;
  timer->NewTimeout([&] { status = timer->Stop().status(); }, absl::Seconds(1)).value();
  timer->NewTimeout(Note("after"), absl::Seconds(2)).value();
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(ran_, ElementsAre("after@2000"));
}

TEST_F(HashedWheelTimerTest, ATaskMayStopAnotherTimer) {
  auto timer = Create();
  auto other = Create();
  other->NewTimeout(Note("other"), absl::Seconds(9)).value();
  timer->NewTimeout([&] { EXPECT_EQ(other->Stop().value().size(), 1u); }, absl::Seconds(1)).value();
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(ran_, IsEmpty());
}

TEST_F(HashedWheelTimerTest, ATaskMayDestroyItsTimer) {
  auto timer = Create();
  auto held = std::make_shared<int>();
  timer->NewTimeout([&] { timer.reset(); }, absl::Seconds(1)).value();
  timer->NewTimeout([this, held] { ran_.push_back("late"); }, absl::Seconds(1)).value();
  timer->NewTimeout([this, held] { ran_.push_back("late"); }, absl::Seconds(2)).value();
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(ran_, IsEmpty());
  EXPECT_EQ(held.use_count(), 1);
}

// Failing tasks.

TEST_F(HashedWheelTimerTest, ATaskThatThrowsIsLoggedAndCountedAndTheWheelGoesOn) {
  HashedWheelTimer::Options options = Options();
  std::vector<std::string> logged;
  options.log = [&](const std::string& message) { logged.push_back(message); };
  auto timer = HashedWheelTimer::Create(options).value();
  auto held = std::make_shared<int>();
  Timeout failing =
      timer->NewTimeout([held] { throw std::runtime_error("no luck"); }, absl::Seconds(1)).value();
  timer->NewTimeout([] { throw 42; }, absl::Seconds(1)).value();
  timer->NewTimeout(Note("next"), absl::Seconds(1)).value();
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre("next@1000"));
  EXPECT_THAT(logged, ElementsAre(AllOf(HasSubstr("test"), HasSubstr("no luck")),
                                  HasSubstr("not a std::exception")));
  EXPECT_EQ(timer->Stats().failed, 2);
  EXPECT_EQ(timer->Stats().fired, 3);
  EXPECT_TRUE(failing.IsExpired());
  EXPECT_EQ(held.use_count(), 1);
}

// Stop.

TEST_F(HashedWheelTimerTest, StopReturnsWhatHasNeitherRunNorBeenCancelled) {
  auto timer = Create();
  Timeout run = timer->NewTimeout(Note("run"), absl::Seconds(1)).value();
  Timeout cancelled = timer->NewTimeout(Note("cancelled"), absl::Seconds(5)).value();
  Timeout kept = timer->NewTimeout(Note("kept"), absl::Seconds(5)).value();
  timer->NewTimeout(Note("never"), absl::InfiniteDuration()).value();
  clock_.Advance(absl::Seconds(1));
  cancelled.Cancel();
  std::vector<TimerTask> tasks = timer->Stop().value();
  EXPECT_EQ(tasks.size(), 2u);
  EXPECT_EQ(timer->pending(), 0);
  // No task starts any more, except where the caller runs what it was given.
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(ran_.size(), 1u);
  for (TimerTask& task : tasks) std::move(task)();
  EXPECT_EQ(ran_.size(), 3u);
  EXPECT_TRUE(kept.IsExpired());
  EXPECT_FALSE(kept.Cancel());
  EXPECT_FALSE(kept.Reschedule(absl::Seconds(1)));
}

TEST_F(HashedWheelTimerTest, AfterStopNewTimeoutFailsAndASecondStopReturnsNothing) {
  auto timer = Create();
  timer->NewTimeout(Note("a"), absl::Seconds(1)).value();
  EXPECT_EQ(timer->Stop().value().size(), 1u);
  EXPECT_EQ(timer->NewTimeout(Note("b"), absl::Seconds(1)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(timer->Stop().value(), IsEmpty());
}

TEST_F(HashedWheelTimerTest, StopBeforeTheFirstTimeout) {
  auto timer = Create();
  EXPECT_THAT(timer->Stop().value(), IsEmpty());
  EXPECT_FALSE(timer->NewTimeout(Note("a"), absl::Seconds(1)).ok());
}

}  // namespace
}  // namespace failback
