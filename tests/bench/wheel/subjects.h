// The timers under measurement, behind one shape:
//
//   Handle Schedule(int64_t delay_ms, Task task);
//   void Cancel(Handle* handle);
//   void Reschedule(Handle* handle, int64_t delay_ms);
//   void Advance(int64_t to_ms);        // raw subjects only: runs what is due
//
// A raw subject has no clock, lock or thread. A service reads the real clock, may be used from
// any thread, and has a thread of its own, named "wheel-driver", that runs the tasks.

#ifndef FAILBACK_TESTS_BENCH_WHEEL_SUBJECTS_H_
#define FAILBACK_TESTS_BENCH_WHEEL_SUBJECTS_H_

#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/wheel.h"

namespace failback::bench {

using Task = absl::AnyInvocable<void() &&>;

inline int64_t NowNanos() { return Clock::Real()->NowNanos(); }

inline void NameDriver() { pthread_setname_np(pthread_self(), "wheel-driver"); }

// Raw.

class RawWheel {
 public:
  using Handle = Wheel::Id;
  template <typename F>
  Handle Schedule(int64_t delay_ms, F&& task) {
    return wheel_.Schedule(wheel_.now() + delay_ms, std::forward<F>(task));
  }
  void Cancel(Handle* handle) { wheel_.Cancel(*handle); }
  void Reschedule(Handle* handle, int64_t delay_ms) {
    wheel_.Reschedule(*handle, wheel_.now() + delay_ms);
  }
  void Advance(int64_t to_ms) { wheel_.Advance(to_ms); }

 private:
  Wheel wheel_{Wheel::Options{}};
};

// std::priority_queue with lazy deletion: a cancelled entry stays until its time comes.
class RawHeap {
 public:
  struct Node {
    Task task;
    bool cancelled = false;
  };
  using Handle = std::shared_ptr<Node>;

  template <typename F>
  Handle Schedule(int64_t delay_ms, F&& task) {
    return ScheduleAt(now_ + delay_ms, std::forward<F>(task));
  }
  template <typename F>
  Handle ScheduleAt(int64_t at, F&& task) {
    auto node = std::make_shared<Node>();
    node->task = std::forward<F>(task);
    queue_.push({at, node});
    return node;
  }
  void Cancel(Handle* handle) {
    if (*handle == nullptr) return;
    (*handle)->cancelled = true;
    (*handle)->task = nullptr;
  }
  void Reschedule(Handle* handle, int64_t delay_ms) { RescheduleAt(handle, now_ + delay_ms); }
  void RescheduleAt(Handle* handle, int64_t at) {
    Task task = std::move((*handle)->task);
    (*handle)->cancelled = true;
    *handle = ScheduleAt(at, std::move(task));
  }
  void Advance(int64_t to) {
    Task task;
    while (PopDue(to, &task)) std::move(task)();
    now_ = to;
  }
  bool PopDue(int64_t to, Task* task) {
    while (!queue_.empty() && queue_.top().at <= to) {
      const Handle node = queue_.top().node;
      queue_.pop();
      if (node->cancelled) continue;
      node->cancelled = true;
      *task = std::move(node->task);
      return true;
    }
    return false;
  }
  // The earliest deadline; INT64_MAX: none.
  int64_t Next() {
    while (!queue_.empty() && queue_.top().node->cancelled) queue_.pop();
    return queue_.empty() ? INT64_MAX : queue_.top().at;
  }

 private:
  struct Entry {
    int64_t at;
    Handle node;
    bool operator<(const Entry& other) const { return at > other.at; }
  };
  std::priority_queue<Entry> queue_;
  int64_t now_ = 0;
};

class RawMultimap {
 public:
  using Map = std::multimap<int64_t, Task>;
  // Valid until run; who cancels from another thread has to know, as in every map of timers. The
  // benchmarks cancel only what is not due.
  using Handle = Map::iterator;

  template <typename F>
  Handle Schedule(int64_t delay_ms, F&& task) {
    return ScheduleAt(now_ + delay_ms, std::forward<F>(task));
  }
  template <typename F>
  Handle ScheduleAt(int64_t at, F&& task) {
    return map_.emplace(at, std::forward<F>(task));
  }
  void Cancel(Handle* handle) { map_.erase(*handle); }
  void Reschedule(Handle* handle, int64_t delay_ms) { RescheduleAt(handle, now_ + delay_ms); }
  void RescheduleAt(Handle* handle, int64_t at) {
    auto node = map_.extract(*handle);
    node.key() = at;
    *handle = map_.insert(std::move(node));
  }
  void Advance(int64_t to) {
    Task task;
    while (PopDue(to, &task)) std::move(task)();
    now_ = to;
  }
  bool PopDue(int64_t to, Task* task) {
    if (map_.empty() || map_.begin()->first > to) return false;
    *task = std::move(map_.begin()->second);
    map_.erase(map_.begin());
    return true;
  }
  int64_t Next() { return map_.empty() ? INT64_MAX : map_.begin()->first; }

 private:
  Map map_;
  int64_t now_ = 0;
};

// Services.

class FailbackService {
 public:
  using Handle = Timeout;
  FailbackService() {
    HashedWheelTimer::Options options;
    options.tick_duration = absl::Milliseconds(1);
    options.name = "wheel-driver";
    timer_ = HashedWheelTimer::Create(options).value();
  }
  template <typename F>
  Handle Schedule(int64_t delay_ms, F&& task) {
    return timer_->NewTimeout(std::forward<F>(task), absl::Milliseconds(delay_ms)).value();
  }
  void Cancel(Handle* handle) { handle->Cancel(); }
  void Reschedule(Handle* handle, int64_t delay_ms) {
    handle->Reschedule(absl::Milliseconds(delay_ms));
  }

 private:
  std::unique_ptr<HashedWheelTimer> timer_;
};

// A raw queue of nanoseconds under a mutex, with a driver on a condition variable.
template <typename Raw>
class LockedService {
 public:
  using Handle = typename Raw::Handle;
  LockedService() : driver_([this] { Drive(); }) {}
  ~LockedService() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      stopping_ = true;
    }
    changed_.notify_one();
    driver_.join();
  }
  template <typename F>
  Handle Schedule(int64_t delay_ms, F&& task) {
    const int64_t at = NowNanos() + delay_ms * 1000000;
    std::lock_guard<std::mutex> lock(mu_);
    WakeFor(at);
    return raw_.ScheduleAt(at, std::forward<F>(task));
  }
  void Cancel(Handle* handle) {
    std::lock_guard<std::mutex> lock(mu_);
    raw_.Cancel(handle);
  }
  void Reschedule(Handle* handle, int64_t delay_ms) {
    const int64_t at = NowNanos() + delay_ms * 1000000;
    std::lock_guard<std::mutex> lock(mu_);
    WakeFor(at);
    raw_.RescheduleAt(handle, at);
  }

 private:
  void WakeFor(int64_t at) {
    if (at >= wake_at_) return;
    wake_at_ = at;
    changed_.notify_one();
  }
  void Drive() {
    NameDriver();
    std::unique_lock<std::mutex> lock(mu_);
    while (!stopping_) {
      Task task;
      if (raw_.PopDue(NowNanos(), &task)) {
        lock.unlock();
        std::move(task)();
        task = nullptr;
        lock.lock();
        continue;
      }
      wake_at_ = raw_.Next();
      if (wake_at_ == INT64_MAX) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, std::chrono::nanoseconds(wake_at_ - NowNanos()));
      }
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  Raw raw_;
  int64_t wake_at_ = 0;
  bool stopping_ = false;
  std::thread driver_;
};

class AsioService {
 public:
  struct Handle {
    std::unique_ptr<boost::asio::steady_timer> timer;
  };
  AsioService() : work_(boost::asio::make_work_guard(io_)), driver_([this] { Drive(); }) {}
  ~AsioService() {
    io_.stop();
    driver_.join();
  }
  template <typename F>
  Handle Schedule(int64_t delay_ms, F&& task) {
    Handle handle;
    handle.timer = std::make_unique<boost::asio::steady_timer>(io_);
    handle.timer->expires_after(std::chrono::milliseconds(delay_ms));
    handle.timer->async_wait(
        [task = std::forward<F>(task)](const boost::system::error_code& error) mutable {
          if (!error) task();
        });
    return handle;
  }
  void Cancel(Handle* handle) { handle->timer.reset(); }
  // asio has no re-arm: setting a new expiry cancels the wait, whose handler then runs with an
  // error, and a new one is needed.
  void Reschedule(Handle* handle, int64_t delay_ms) {
    handle->timer->expires_after(std::chrono::milliseconds(delay_ms));
    handle->timer->async_wait([](const boost::system::error_code&) {});
  }

 private:
  void Drive() {
    NameDriver();
    io_.run();
  }
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread driver_;
};

}  // namespace failback::bench

#endif  // FAILBACK_TESTS_BENCH_WHEEL_SUBJECTS_H_
