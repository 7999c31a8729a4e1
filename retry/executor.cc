#include "retry/executor.h"

#include <algorithm>
#include <utility>

namespace failback {

ThreadPool::ThreadPool(int threads) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  changed_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Execute(absl::AnyInvocable<void() &&> task) {
  {
    MutexLock lock(&mu_);
    queue_.push_back(std::move(task));
  }
  changed_.Signal();
}

void ThreadPool::Work() {
  mu_.Lock();
  for (;;) {
    if (!queue_.empty()) {
      absl::AnyInvocable<void()&&> task = std::move(queue_.front());
      queue_.pop_front();
      ++running_;
      mu_.Unlock();
      std::move(task)();
      task = nullptr;
      mu_.Lock();
      --running_;
    } else if (stopping_ && running_ == 0) {
      break;
    } else {
      changed_.Wait(&mu_);
    }
  }
  mu_.Unlock();
  changed_.SignalAll();  // the others may be waiting for the last running task
}

}  // namespace failback
