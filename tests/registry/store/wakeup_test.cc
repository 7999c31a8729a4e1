#include "registry/store/wakeup.h"

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "retry/simulated_clock.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;

class WakeupTest : public ::testing::Test {
 protected:
  void OnRun() {
    ran_.push_back((clock_.NowNanos() - begin_) / 1000000);
    if (in_task_) in_task_();
  }

  SimulatedClock clock_;
  const int64_t begin_ = clock_.NowNanos();
  std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_, absl::Milliseconds(1));
  std::vector<int64_t> ran_;  // milliseconds since the beginning
  std::function<void()> in_task_;
  Wakeup wakeup_{timer_.get(), [this] { OnRun(); }};
};

TEST_F(WakeupTest, ArmedTwice_RunsOnceAtTheEarlierTime) {
  wakeup_.Arm(absl::Milliseconds(100));
  wakeup_.Arm(absl::Milliseconds(50));
  wakeup_.Arm(absl::Milliseconds(70));
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre(50));
}

TEST_F(WakeupTest, PutOff_RunsAtTheLatestTimeGiven) {
  wakeup_.PutOff(absl::Milliseconds(100));
  clock_.Advance(absl::Milliseconds(90));
  wakeup_.PutOff(absl::Milliseconds(100));
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre(190));
}

TEST_F(WakeupTest, ArmedByItsTask_RunsAgain) {
  in_task_ = [this] {
    if (ran_.size() < 3) wakeup_.Arm(absl::Milliseconds(10));
  };
  wakeup_.Arm(absl::Milliseconds(10));
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre(10, 20, 30));
}

TEST_F(WakeupTest, Stopped_DoesNotRunAndIsNotArmedAgain) {
  wakeup_.Arm(absl::Milliseconds(10));
  wakeup_.Stop();
  wakeup_.Arm(absl::Milliseconds(10));
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(ran_, ElementsAre());
}

TEST_F(WakeupTest, StopDuringTheTask_WaitsForItsEnd) {
  absl::Notification began;
  absl::Notification go_on;
  bool ended = false;
  in_task_ = [&] {
    began.Notify();
    go_on.WaitForNotification();
    wakeup_.Arm(absl::Milliseconds(10));
    ended = true;
  };
  wakeup_.Arm(absl::Milliseconds(10));
  std::thread runs([&] { clock_.Advance(absl::Seconds(1)); });
  began.WaitForNotification();
  std::thread lets_go([&] { go_on.Notify(); });
  wakeup_.Stop();
  EXPECT_TRUE(ended);
  runs.join();
  lets_go.join();
  EXPECT_EQ(ran_.size(), 1u) << "stopped: what the task has armed does not run";
}

}  // namespace
}  // namespace failback
