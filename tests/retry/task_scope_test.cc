#include "retry/task_scope.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/util/fake_executor.h"

namespace failback {
namespace {

TEST(TaskScopeTest, RunsTasksOnTheExecutorInItsOrder) {
  FakeExecutor executor;
  TaskScope tasks(&executor, 1);
  int ran = 0;
  tasks.Execute([&] { EXPECT_EQ(++ran, 1); });
  tasks.Execute([&] {
    EXPECT_EQ(++ran, 2);
    tasks.Execute([&] { ++ran; });
  });
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(executor.RunAll(), 3);
  EXPECT_EQ(ran, 3);
}

TEST(TaskScopeTest, TasksThatHaveNotBegunWhenItIsClosedNeverDo) {
  FakeExecutor executor;
  auto tasks = std::make_unique<TaskScope>(&executor, 1);
  bool ran = false;
  tasks->Execute([&] { ran = true; });
  tasks.reset();
  EXPECT_EQ(executor.RunAll(), 1);
  EXPECT_FALSE(ran);
}

TEST(TaskScopeTest, CloseWaitsForTheTaskThatRunsAndForWhatItHolds) {
  for (int i = 0; i < 200; ++i) {
    TaskScope tasks(nullptr, 2);
    std::atomic<bool> begun{false};
    std::atomic<bool> gone{false};
    std::shared_ptr<void> held(
        &gone, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); });
    tasks.Execute([&begun, held = std::move(held)] {
      begun = true;
      std::this_thread::yield();
    });
    while (!begun) std::this_thread::yield();
    tasks.Close();
    EXPECT_TRUE(gone);
  }
}

}  // namespace
}  // namespace failback
