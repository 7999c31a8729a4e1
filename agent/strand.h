// Runs tasks on an Executor one at a time and in order, and can be closed from anywhere.
//
// Thread safety: all methods from any thread.
//
// Invariants:
// 1. One task runs at a time, in the order of Post().
// 2. After Close() has returned no task runs; from within a task it returns at once and that task
//    is the last.

#ifndef FAILBACK_AGENT_STRAND_H_
#define FAILBACK_AGENT_STRAND_H_

#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "retry/executor.h"
#include "retry/mutex.h"

namespace failback {

class Strand : public std::enable_shared_from_this<Strand> {
 public:
  // `executor` outlives the strand's last task.
  static std::shared_ptr<Strand> Create(Executor* executor) {
    return std::shared_ptr<Strand>(new Strand(executor));
  }

  // Ignored after Close().
  void Post(absl::AnyInvocable<void()> task) {
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      tasks_.push_back(std::move(task));
      if (scheduled_) return;
      scheduled_ = true;
    }
    executor_->Execute([self = shared_from_this()] { self->RunAll(); });
  }

  void Close() {
    std::deque<absl::AnyInvocable<void()>> dropped;
    MutexLock lock(&mu_);
    closed_ = true;
    dropped.swap(tasks_);
    while (running_ && thread_ != std::this_thread::get_id()) idle_.Wait(&mu_);
  }

 private:
  explicit Strand(Executor* executor) : executor_(executor) {}

  void RunAll() {
    while (true) {
      absl::AnyInvocable<void()> task;
      {
        MutexLock lock(&mu_);
        running_ = false;
        if (tasks_.empty()) {
          scheduled_ = false;
          idle_.SignalAll();
          return;
        }
        task = std::move(tasks_.front());
        tasks_.pop_front();
        running_ = true;
        thread_ = std::this_thread::get_id();
      }
      task();
    }
  }

  Executor* const executor_;
  Mutex mu_;
  CondVar idle_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread::id thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_AGENT_STRAND_H_
