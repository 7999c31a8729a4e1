// Where tasks run.
//
// A timer hands its due tasks to an Executor, so that a task that hangs holds up no other. The
// default is none at all: tasks run on the timer's own thread, which is the fastest and right
// for tasks that only start something. Choose ThreadPool for tasks that block.
//
// Thread safety: Execute may be called from any thread, from inside a task too.

#ifndef FAILBACK_RETRY_EXECUTOR_H_
#define FAILBACK_RETRY_EXECUTOR_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "retry/mutex.h"

namespace failback {

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `task` once, now or later, on this thread or another. Must not drop it.
  virtual void Execute(absl::AnyInvocable<void() &&> task) = 0;
};

// A fixed number of threads and one unbounded queue, first in first out. A task must not throw.
class ThreadPool final : public Executor {
 public:
  // Starts `threads` threads, at least one.
  explicit ThreadPool(int threads);

  // Runs everything queued, what running tasks still queue included, then joins. Not to be
  // called from one of its own tasks.
  ~ThreadPool() override;

  void Execute(absl::AnyInvocable<void() &&> task) override;

 private:
  void Work();

  Mutex mu_;
  CondVar changed_;
  std::deque<absl::AnyInvocable<void() &&>> queue_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // written by the constructor only
};

}  // namespace failback

#endif  // FAILBACK_RETRY_EXECUTOR_H_
