// An executor that runs tasks when the test says so, on the test's thread.

#ifndef FAILBACK_TESTS_UTIL_FAKE_EXECUTOR_H_
#define FAILBACK_TESTS_UTIL_FAKE_EXECUTOR_H_

#include <cstddef>
#include <deque>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "retry/executor.h"

namespace failback {

class FakeExecutor final : public Executor {
 public:
  void Execute(absl::AnyInvocable<void() &&> task) override { tasks_.push_back(std::move(task)); }

  size_t waiting() const { return tasks_.size(); }

  // The oldest, if there is one.
  bool RunOne() {
    if (tasks_.empty()) return false;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    std::move(task)();
    return true;
  }

  // Also what tasks add. Returns how many ran.
  int RunAll() {
    int ran = 0;
    while (RunOne()) ++ran;
    return ran;
  }

 private:
  std::deque<absl::AnyInvocable<void() &&>> tasks_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_FAKE_EXECUTOR_H_
