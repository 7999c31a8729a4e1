#include "retry/timer_core.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"

namespace failback {
namespace internal_timer {

thread_local const RunningTask* running_task = nullptr;

namespace {

constexpr int64_t kNanosPerSecond = 1000000000;
constexpr uint32_t kMaxShards = 32;
constexpr int64_t kLongestSleepNanos = 24 * 3600 * kNanosPerSecond;

class ShardPool {
 public:
  static ShardPool& Get() {
    static ShardPool* const pool = new ShardPool;
    return *pool;
  }

  Shard* Take() {
    MutexLock lock(&mu_);
    if (free_.empty()) return new Shard;
    Shard* const shard = free_.back();
    free_.pop_back();
    return shard;
  }

  void Return(Shard* shard) {
    MutexLock lock(&mu_);
    free_.push_back(shard);
  }

 private:
  Mutex mu_;
  std::vector<Shard*> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

bool InTaskOf(const Core* core) {
  for (const RunningTask* task = running_task; task != nullptr; task = task->outer) {
    if (task->core == core) return true;
  }
  return false;
}

Core::Core(HashedWheelTimer::Options o, bool simulated)
    : options(std::move(o)),
      scale(options.clock->NowNanos(), absl::ToInt64Nanoseconds(options.tick_duration)),
      has_thread(!simulated && !options.manual_drive),
      has_real_clock(options.clock == Clock::Real()) {
  // Two a processor: threads then seldom share one.
  const uint32_t wanted = simulated ? 1 : 2 * std::max(std::thread::hardware_concurrency(), 1u);
  const uint32_t count = std::min(absl::bit_ceil(wanted), kMaxShards);
  for (uint32_t i = 0; i < count; ++i) {
    Shard* const shard = ShardPool::Get().Take();
    SpinLockHolder lock(&shard->lock);
    shard->core = this;
    shard->number = i;
    shard->mask = count - 1;
    shard->scale.Set(scale);
    shard->has_real_clock = has_real_clock;
    shards.push_back(shard);
  }
  shard_mask = count - 1;
}

Core::~Core() {
  for (Shard* shard : shards) {
    {
      SpinLockHolder lock(&shard->lock);
      if (shard->wheel.has_value()) shard->first_generation = shard->wheel->NextGeneration();
      shard->wheel.reset();
      shard->core = nullptr;
      shard->stopped = false;
      shard->wake_tick = 0;
      shard->scheduled = shard->fired = shard->cancelled = 0;
      shard->failed = shard->worst_lateness_nanos = 0;
      shard->lateness = Histogram(kLatencyBoundsNanos);
      if (shard->first_generation == 0) continue;  // used up: it belongs to no thread any more
    }
    ShardPool::Get().Return(shard);
  }
}

void Core::MakeWheel(Shard* shard) const {
  Wheel::Options wheel_options;
  wheel_options.ticks_per_wheel = options.ticks_per_wheel;
  wheel_options.keep_insertion_order = options.clock->DrivesTimers();
  wheel_options.first_generation = shard->first_generation;
  wheel_options.small = options.clock->DrivesTimers();
  shard->wheel.emplace(wheel_options, &shard->slab);
  shard->wheel->Advance(NowTick());
}

// --- Running.

void Core::Report(const char* what) const {
  const std::string message = absl::StrCat(options.name, ": a task threw: ", what);
  if (options.log) {
    options.log(message);
  } else {
    std::fprintf(stderr, "%s\n", message.c_str());
  }
}

inline bool Core::RunTask(Shard* shard, Wheel::Id id, TimerTask* task) const {
  const RunningTask running{this, shard, id, running_task};
  running_task = &running;
  bool succeeded = false;
  try {
    RunTimerTask(*task);
    succeeded = true;
  } catch (const std::exception& exception) {
    Report(exception.what());
  } catch (...) {
    Report("not a std::exception");
  }
  task->~TimerTask();
  running_task = running.outer;
  return succeeded;
}

inline void Core::RunEntry(Shard* shard, Wheel::Id id, int64_t due_nanos) {
  TimerTask* const task = shard->wheel->Start(id);
  if (ABSL_PREDICT_FALSE(task == nullptr)) {
    // It may have been put off while it was in the executor's queue.
    return WakeFor(shard, NextEventOf(shard));
  }
  ReturnCredit();
  ++shard->fired;
  ++shard->running;
  if (due_nanos != 0) {
    const int64_t lateness_nanos = options.clock->NowNanos() - due_nanos;
    shard->worst_lateness_nanos = std::max(shard->worst_lateness_nanos, lateness_nanos);
    shard->lateness.Observe(lateness_nanos);
  }
  shard->lock.Unlock();
  const bool succeeded = RunTask(shard, id, task);
  shard->lock.Lock();
  shard->failed += !succeeded;
  shard->wheel->Finish(id);
  --shard->running;
  if (ABSL_PREDICT_TRUE(shard->waiters == 0)) return;
  shard->lock.Unlock();
  {
    MutexLock lock(&shard->ended_mu);
    shard->ended.SignalAll();
  }
  shard->lock.Lock();
}

Tick Core::RunShard(Shard* shard, Tick to, int64_t max_tasks, int64_t* ran) {
  SpinLockHolder lock(&shard->lock);
  while (!shard->stopped && *ran < max_tasks) {
    int budget = kSlice;
    const Wheel::Id id = shard->wheel->PopDue(to, &budget);
    if (id.generation == 0) {
      if (budget > 0) break;
      shard->lock.Unlock();  // lets a producer in
      shard->lock.Lock();
      continue;
    }
    ++*ran;
    // The last of those at hand is the latest: it alone pays for a look at the clock.
    const int64_t due_nanos = options.executor != nullptr || shard->wheel->due_buffer_empty()
                                  ? scale.NanosOf(shard->wheel->now())
                                  : 0;
    if (ABSL_PREDICT_TRUE(options.executor == nullptr)) {
      RunEntry(shard, id, due_nanos);
    } else {
      shard->lock.Unlock();
      options.executor->Execute([core = shared_from_this(), shard, id, due_nanos] {
        SpinLockHolder lock(&shard->lock);
        if (shard->core == core.get()) core->RunEntry(shard, id, due_nanos);
      });
      shard->lock.Lock();
    }
  }
  return NextEventOf(shard);
}

int64_t Core::RunDueTasks(int64_t max_tasks) {
  const Tick now = NowTick();
  Tick next[kMaxShards];
  for (size_t i = 0; i < shards.size(); ++i) {
    SpinLockHolder lock(&shards[i]->lock);
    shards[i]->wake_tick = 0;
    shards[i]->Reclaim(kSlice);
    next[i] = NextEventOf(shards[i]);
    if (next[i] > now && shards[i]->wheel.has_value()) {
      int budget = 1;
      shards[i]->wheel->PopDue(now, &budget);  // pops nothing, moves on
    }
  }
  sooner = true;
  int64_t ran = 0;
  while (ran < max_tasks) {
    // The shard with the earliest event goes on until another has an earlier one.
    size_t first = 0;
    for (size_t i = 1; i < shards.size(); ++i) {
      if (next[i] < next[first]) first = i;
    }
    if (next[first] > now) break;
    Tick until = now;
    for (size_t i = 0; i < shards.size(); ++i) {
      if (i != first) until = std::min(until, next[i]);
    }
    next[first] = RunShard(shards[first], until, max_tasks, &ran);
  }
  return ran;
}

std::optional<int64_t> Core::NextDueNanos() {
  Tick next = Wheel::kNever;
  for (Shard* shard : shards) {
    SpinLockHolder lock(&shard->lock);
    // What it was when last asked, unless something has run or an earlier one was added since: a
    // cancelled one may be among them, so that the caller comes once in vain.
    if (shard->wake_tick == 0) shard->wake_tick = NextEventOf(shard);
    next = std::min(next, shard->wake_tick);
  }
  const int64_t nanos = scale.NanosOf(next);
  if (nanos == kForeverNanos) return std::nullopt;
  return nanos;
}

// --- The driver.

absl::Status Core::StartDriver() {
  MutexLock lock(&mu);
  if (driver_started.load(std::memory_order_relaxed) || stopping) return absl::OkStatus();
  // Signals are for the threads of the host, not for this one.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::Status status;
  try {
    driver = std::thread([core = shared_from_this()] { core->Drive(); });
    driver_started.store(true, std::memory_order_release);
  } catch (const std::system_error& error) {
    status = absl::ResourceExhaustedError(
        absl::StrCat(options.name, ": no thread for the timer: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void Core::Drive() {
  pthread_setname_np(pthread_self(), options.name.substr(0, 15).c_str());
  prctl(PR_SET_TIMERSLACK, 1);  // wake up on time; by default Linux may add 50 us
  while (!stopping) {
    if (RunDueTasks(std::numeric_limits<int64_t>::max()) > 0) continue;
    Tick next = Wheel::kNever;
    for (Shard* shard : shards) {
      SpinLockHolder lock(&shard->lock);
      shard->wake_tick = NextEventOf(shard);
      next = std::min(next, shard->wake_tick);
    }
    const int64_t sleep_nanos =
        std::min(scale.NanosOf(next) - options.clock->NowNanos(), kLongestSleepNanos);
    MutexLock lock(&mu);
    if (!woken && sleep_nanos > 0) {
      if (next == Wheel::kNever) {
        woken_cv.Wait(&mu);
      } else {
        woken_cv.WaitFor(&mu, absl::Nanoseconds(sleep_nanos));
      }
    }
    woken = false;
  }
}

void Core::Wake() {
  sooner = true;
  if (!has_thread) return;
  {
    MutexLock lock(&mu);
    woken = true;
  }
  woken_cv.Signal();
}

std::vector<TimerTask> Core::Stop(bool wait) {
  std::vector<TimerTask> tasks;
  MutexLock stop_lock(&stop_mu);
  if (stop_done) return tasks;
  stop_done = true;
  // From here on nothing is accepted and nothing started.
  for (Shard* shard : shards) {
    SpinLockHolder lock(&shard->lock);
    shard->stopped = true;
    shard->wake_tick = 0;
  }
  stopping = true;
  options.clock->Detach(this);
  std::thread thread;
  {
    MutexLock lock(&mu);
    thread = std::move(driver);
  }
  Wake();
  if (thread.joinable()) {
    if (wait) {
      thread.join();
    } else {
      thread.detach();  // ends after the task that it is in
    }
  }
  for (Shard* shard : shards) {
    const size_t before = tasks.size();
    uint32_t from = 0;
    for (bool more = true; more;) {
      SpinLockHolder lock(&shard->lock);
      more = shard->wheel.has_value() && shard->wheel->TakePending(&from, kSlice, &tasks);
    }
    // What is left is withheld, and comes back within the Cancel that is under way.
    while (true) {
      {
        SpinLockHolder lock(&shard->lock);
        shard->Reclaim(std::numeric_limits<int>::max());
        if (!shard->wheel.has_value() || shard->wheel->pending() == 0) break;
      }
      sched_yield();
    }
    for (size_t i = before; i < tasks.size(); ++i) ReturnCredit();
    if (!wait) continue;
    shard->WaitWhile([shard] {
      SpinLockHolder lock(&shard->lock);
      return shard->running > 0;
    });
  }
  return tasks;
}

}  // namespace internal_timer
}  // namespace failback
