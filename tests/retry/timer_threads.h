// What tests of the timer with real threads share.

#ifndef FAILBACK_TESTS_RETRY_TIMER_THREADS_H_
#define FAILBACK_TESTS_RETRY_TIMER_THREADS_H_

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {

constexpr absl::Duration kDeadline = absl::Seconds(60);

inline std::unique_ptr<HashedWheelTimer> Create(Executor* executor = nullptr) {
  HashedWheelTimer::Options options;
  options.tick_duration = absl::Milliseconds(1);
  options.executor = executor;
  return HashedWheelTimer::Create(options).value();
}

// Something that happens once, for one thread to wait for; as absl::Notification, but TSan sees it.
class OnceEvent {
 public:
  void Happen() {
    MutexLock lock(&mu_);
    happened_ = true;
    changed_.SignalAll();
  }
  bool happened() {
    MutexLock lock(&mu_);
    return happened_;
  }
  // False if it has not happened within a deadline that only a hanging test reaches.
  bool Await() {
    MutexLock lock(&mu_);
    const absl::Time end = absl::Now() + kDeadline;
    while (!happened_ && absl::Now() < end) changed_.WaitFor(&mu_, end - absl::Now());
    return happened_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool happened_ ABSL_GUARDED_BY(mu_) = false;
};

// A pool of one thread that counts what it was handed.
class CountingPool final : public Executor {
 public:
  void Execute(absl::AnyInvocable<void() &&> task) override {
    pool_.Execute(std::move(task));
    ++executed_;
  }
  void AwaitExecuted(int count) {
    while (executed_ < count) std::this_thread::yield();
  }

 private:
  std::atomic<int> executed_{0};
  ThreadPool pool_{1};
};

}  // namespace failback

#endif  // FAILBACK_TESTS_RETRY_TIMER_THREADS_H_
