// The tasks of one owner on an Executor that outlives it, or on threads of its own.
//
// An Executor runs every task that it was given, also when the object that the task is about is
// gone. A TaskScope is closed by its owner's destructor: tasks that run are waited for, and those
// that have not begun never do. So the owner needs no thread, and a simulation that runs the
// executor's tasks one by one, in an order of its own, needs none either.
//
//   TaskScope tasks(executor, /*threads=*/1);   // a null executor: a thread of its own
//   tasks.Execute([this] { … });
//   tasks.Close();                              // no task of it runs from here on
//
// Thread safety: all methods from any thread. Close() and the destructor must not be called from
// one of its tasks.

#ifndef FAILBACK_RETRY_TASK_SCOPE_H_
#define FAILBACK_RETRY_TASK_SCOPE_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "retry/executor.h"
#include "retry/mutex.h"

namespace failback {

class TaskScope {
 public:
  // `executor` outlives the scope's tasks. Without one the scope starts `threads` threads.
  TaskScope(Executor* executor, int threads)
      : own_(executor == nullptr ? std::make_unique<ThreadPool>(threads) : nullptr),
        executor_(executor == nullptr ? own_.get() : executor) {}
  ~TaskScope() { Close(); }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

  // Runs `task` as the executor does, or never when the scope is closed before.
  template <typename Task>
  void Execute(Task task) {
    executor_->Execute([state = state_, task = std::move(task)]() mutable {
      if (!state->Begin()) return;
      {
        // It is gone when the scope is closed, with all that it holds.
        Task mine = std::move(task);
        mine();
      }
      state->End();
    });
  }

  void Close() { state_->Close(); }

 private:
  class State {
   public:
    bool Begin() {
      MutexLock lock(&mu_);
      if (!closed_) ++running_;
      return !closed_;
    }
    void End() {
      MutexLock lock(&mu_);
      if (--running_ == 0) idle_.SignalAll();
    }
    void Close() {
      MutexLock lock(&mu_);
      closed_ = true;
      while (running_ > 0) idle_.Wait(&mu_);
    }

   private:
    Mutex mu_;
    CondVar idle_;
    int running_ ABSL_GUARDED_BY(mu_) = 0;
    bool closed_ ABSL_GUARDED_BY(mu_) = false;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  const std::unique_ptr<ThreadPool> own_;
  Executor* const executor_;
};

}  // namespace failback

#endif  // FAILBACK_RETRY_TASK_SCOPE_H_
