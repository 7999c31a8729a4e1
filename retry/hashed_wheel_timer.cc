#include "retry/hashed_wheel_timer.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "retry/mutex.h"

namespace failback {
namespace internal_timer {

using Key = std::pair<int64_t, int64_t>;  // tick, order of insertion
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Node {
  enum class State { kPending, kRunning, kDone };
  State state = State::kPending;
  Key key;
  int64_t deadline_nanos = 0;
  TimerTask task;
  std::thread::id thread;
};

struct Core;
thread_local Core* running_core = nullptr;  // whose task this thread is in

struct Core : public ClockDriven {
  explicit Core(HashedWheelTimer::Options o)
      : options(std::move(o)),
        tick_nanos(absl::ToInt64Nanoseconds(options.tick_duration)),
        origin(options.clock->NowNanos()) {}

  int64_t DeadlineNanos(absl::Duration delay) const {
    const int64_t now = options.clock->NowNanos();
    const int64_t nanos = std::max<int64_t>(absl::ToInt64Nanoseconds(delay), 0);
    return nanos > kNever - now ? kNever : now + nanos;
  }
  Key KeyFor(int64_t deadline_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const int64_t since = deadline_nanos - origin;
    int64_t tick = since / tick_nanos + (since % tick_nanos != 0);
    tick = std::max(tick, current_tick + 1);
    return {tick, ++order};
  }
  int64_t TickTime(int64_t tick) const {
    return tick > (kNever - origin) / tick_nanos ? kNever : origin + tick * tick_nanos;
  }
  std::optional<int64_t> NextDueNanos() override {
    MutexLock lock(&mu);
    if (queue.empty()) return std::nullopt;
    const int64_t due = TickTime(queue.begin()->first.first);
    if (due == kNever) return std::nullopt;
    return due;
  }
  int64_t RunDue() override { return RunSome(kNever); }
  int64_t RunSome(int64_t max_tasks) {
    int64_t ran = 0;
    const int64_t now_tick = (options.clock->NowNanos() - origin) / tick_nanos;
    while (ran < max_tasks) {
      std::shared_ptr<Node> node;
      {
        MutexLock lock(&mu);
        if (queue.empty() || queue.begin()->first.first > now_tick) {
          if (queue.empty() || queue.begin()->first.first > now_tick)
            current_tick = std::max(current_tick, now_tick);
          break;
        }
        node = queue.begin()->second;
        current_tick = std::max(current_tick, node->key.first);
        queue.erase(queue.begin());
        --stats.pending;
        ++stats.fired;
        node->state = Node::State::kRunning;
        ++active;
        const absl::Duration late =
            absl::Nanoseconds(options.clock->NowNanos() - node->deadline_nanos);
        stats.worst_lateness = std::max(stats.worst_lateness, late);
        if (options.executor == nullptr) node->thread = std::this_thread::get_id();
      }
      ++ran;
      if (options.executor == nullptr) {
        RunNode(node);
      } else {
        options.executor->Execute([this, node] { RunNode(node); });
      }
    }
    return ran;
  }
  void RunNode(const std::shared_ptr<Node>& node) {
    {
      MutexLock lock(&mu);
      node->thread = std::this_thread::get_id();
    }
    Core* const outer = std::exchange(running_core, this);
    bool threw = true;
    std::string what = "of unknown type";
    try {
      std::move(node->task)();
      threw = false;
    } catch (const std::exception& e) {
      what = e.what();
    } catch (...) {
    }
    node->task = nullptr;
    running_core = outer;
    if (threw) {
      const std::string message = absl::StrCat(options.name, ": a task threw an exception: ", what);
      if (options.log) {
        options.log(message);
      } else {
        std::fprintf(stderr, "%s\n", message.c_str());
      }
    }
    MutexLock lock(&mu);
    stats.failed += threw;
    node->state = Node::State::kDone;
    node->thread = std::thread::id();
    --active;
    changed.SignalAll();
    ended.SignalAll();
  }
  void Drive() {
    driver_id = std::this_thread::get_id();
    for (;;) {
      RunSome(kNever);
      MutexLock lock(&mu);
      if (stopped) return;
      if (queue.empty()) {
        changed.Wait(&mu);
        continue;
      }
      const int64_t due = TickTime(queue.begin()->first.first);
      const int64_t now = options.clock->NowNanos();
      if (due > now) {
        changed.WaitFor(
            &mu, absl::Nanoseconds(std::min<int64_t>(due - now, int64_t{3600} * 1000000000)));
      }
    }
  }

  const HashedWheelTimer::Options options;
  const int64_t tick_nanos;
  const int64_t origin;
  bool driven = false;
  std::thread::id driver_id;
  mutable Mutex mu;
  CondVar changed;
  CondVar ended;
  std::map<Key, std::shared_ptr<Node>> queue ABSL_GUARDED_BY(mu);
  int64_t order ABSL_GUARDED_BY(mu) = 0;
  int64_t current_tick ABSL_GUARDED_BY(mu) = 0;
  int64_t active ABSL_GUARDED_BY(mu) = 0;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  std::thread driver ABSL_GUARDED_BY(mu);
  HashedWheelTimer::Statistics stats ABSL_GUARDED_BY(mu);
};

}  // namespace internal_timer

using internal_timer::Core;
using internal_timer::Node;

bool Timeout::Cancel() {
  if (node_ == nullptr) return false;
  TimerTask task;
  MutexLock lock(&core_->mu);
  if (node_->state != Node::State::kPending || core_->queue.erase(node_->key) == 0) return false;
  node_->state = Node::State::kDone;
  task = std::move(node_->task);
  --core_->stats.pending;
  ++core_->stats.cancelled;
  cancelled_ = true;
  return true;
}

bool Timeout::IsCancelled() const { return cancelled_; }

bool Timeout::IsExpired() const {
  if (node_ == nullptr || cancelled_) return false;
  MutexLock lock(&core_->mu);
  return node_->state != Node::State::kPending;
}

bool Timeout::Reschedule(absl::Duration delay) {
  if (node_ == nullptr) return false;
  MutexLock lock(&core_->mu);
  if (node_->state != Node::State::kPending || core_->queue.erase(node_->key) == 0) return false;
  node_->deadline_nanos = core_->DeadlineNanos(delay);
  node_->key = core_->KeyFor(node_->deadline_nanos);
  core_->queue.emplace(node_->key, node_);
  ++core_->stats.rescheduled;
  core_->changed.Signal();
  return true;
}

void Timeout::Wait() {
  if (node_ == nullptr) return;
  MutexLock lock(&core_->mu);
  while (node_->state == Node::State::kRunning && node_->thread != std::this_thread::get_id()) {
    core_->ended.Wait(&core_->mu);
  }
}

absl::StatusOr<std::unique_ptr<HashedWheelTimer>> HashedWheelTimer::Create(Options options) {
  if (options.clock == nullptr) return absl::InvalidArgumentError("clock: must not be null");
  if (options.tick_duration < absl::Microseconds(1) || options.tick_duration > absl::Hours(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tick_duration: ", absl::FormatDuration(options.tick_duration), "; allowed: 1us to 1h"));
  }
  if (options.ticks_per_wheel < 1 || options.ticks_per_wheel > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("ticks_per_wheel: ", options.ticks_per_wheel, "; allowed: 1 to 65536"));
  }
  if (options.max_pending_timeouts < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_pending_timeouts: ", options.max_pending_timeouts, "; allowed: 0 (no limit) and up"));
  }
  auto core = std::make_shared<Core>(std::move(options));
  core->driven = core->options.clock->Attach(core.get());
  return std::unique_ptr<HashedWheelTimer>(new HashedWheelTimer(std::move(core)));
}

HashedWheelTimer::HashedWheelTimer(std::shared_ptr<Core> core) : core_(std::move(core)) {}
HashedWheelTimer::~HashedWheelTimer() { Stop().IgnoreError(); }

absl::StatusOr<Timeout> HashedWheelTimer::NewTimeout(TimerTask task, absl::Duration delay) {
  auto node = std::make_shared<Node>();
  node->task = std::move(task);
  node->deadline_nanos = core_->DeadlineNanos(delay);
  MutexLock lock(&core_->mu);
  if (core_->stopped) {
    return absl::FailedPreconditionError(absl::StrCat(core_->options.name, ": is stopped"));
  }
  const int64_t bound = core_->options.max_pending_timeouts;
  if (bound > 0 && core_->stats.pending >= bound) {
    return absl::ResourceExhaustedError(
        absl::StrCat(core_->options.name, ": ", bound, " timeouts are pending, the most allowed"));
  }
  if (!core_->options.manual_drive && !core_->driven && !core_->driver.joinable()) {
    core_->driver = std::thread([core = core_.get()] { core->Drive(); });
  }
  node->key = core_->KeyFor(node->deadline_nanos);
  core_->queue.emplace(node->key, node);
  ++core_->stats.pending;
  ++core_->stats.scheduled;
  core_->changed.Signal();
  Timeout timeout;
  timeout.core_ = core_;
  timeout.node_ = std::move(node);
  return timeout;
}

absl::StatusOr<std::vector<TimerTask>> HashedWheelTimer::Stop() {
  if (internal_timer::running_core == core_.get()) {
    return absl::FailedPreconditionError(
        absl::StrCat(core_->options.name, ": Stop called from one of the timer's tasks"));
  }
  std::vector<TimerTask> tasks;
  std::thread driver;
  {
    MutexLock lock(&core_->mu);
    core_->stopped = true;
    for (auto& [key, node] : core_->queue) {
      node->state = Node::State::kDone;
      tasks.push_back(std::move(node->task));
      --core_->stats.pending;
    }
    core_->queue.clear();
    driver = std::move(core_->driver);
    core_->changed.SignalAll();
  }
  core_->options.clock->Detach(core_.get());
  if (driver.joinable()) driver.join();
  MutexLock lock(&core_->mu);
  while (core_->active > 0) core_->ended.Wait(&core_->mu);
  return tasks;
}

int64_t HashedWheelTimer::pending() const {
  MutexLock lock(&core_->mu);
  return core_->stats.pending;
}

HashedWheelTimer::Statistics HashedWheelTimer::Stats() const {
  MutexLock lock(&core_->mu);
  return core_->stats;
}

const Clock* HashedWheelTimer::clock() const { return core_->options.clock; }
int64_t HashedWheelTimer::RunDue(int64_t max_tasks) { return core_->RunSome(max_tasks); }
std::optional<int64_t> HashedWheelTimer::NextDueNanos() const { return core_->NextDueNanos(); }

}  // namespace failback
