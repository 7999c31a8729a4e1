#include "retry/hashed_wheel_timer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/numeric/bits.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "retry/cycle_clock.h"
#include "retry/mutex.h"
#include "retry/spin_lock.h"
#include "retry/ticks.h"
#include "retry/timer_slab.h"
#include "retry/wheel.h"

namespace failback {
namespace internal_timer {

using Tick = Wheel::Tick;

constexpr int64_t kNanosPerSecond = 1000000000;
// Entries touched while a shard's lock is held: what a producer may have to wait for.
constexpr int kSlice = 128;
constexpr uint32_t kMaxShards = 32;
constexpr int64_t kLongestSleepNanos = 24 * 3600 * kNanosPerSecond;

// A wheel with its lock. Each thread schedules on one shard, so that producers rarely meet.
//
// Shards are never freed: a handle may outlive its timer, and finds here that its entry is over.
// A timer takes its shards from a pool and gives them back; generations go on where the last
// timer's ended, so that an old handle never matches a new entry.
struct alignas(128) Shard {
  // For Reschedule without the lock: whether it may, and how to know the tick.
  std::atomic<bool> has_real_clock{false};
  SharedTickScale scale;
  TimerSlab slab;

  alignas(128) SpinLock lock;
  std::optional<Wheel> wheel ABSL_GUARDED_BY(lock);  // made for the first timeout
  Core* core ABSL_GUARDED_BY(lock) = nullptr;        // nullptr: no timer has this shard
  bool stopped ABSL_GUARDED_BY(lock) = false;
  // The driver sleeps until this tick, or until it is woken; 0: it is awake and will look here.
  Tick wake_tick ABSL_GUARDED_BY(lock) = 0;
  int running ABSL_GUARDED_BY(lock) = 0;
  int waiters ABSL_GUARDED_BY(lock) = 0;
  uint32_t first_generation ABSL_GUARDED_BY(lock) = 1;

  int64_t scheduled ABSL_GUARDED_BY(lock) = 0;
  int64_t fired ABSL_GUARDED_BY(lock) = 0;
  int64_t cancelled ABSL_GUARDED_BY(lock) = 0;
  int64_t failed ABSL_GUARDED_BY(lock) = 0;
  int64_t worst_lateness_nanos ABSL_GUARDED_BY(lock) = 0;
  Histogram lateness ABSL_GUARDED_BY(lock){kLatencyBoundsNanos};

  // For those who wait for a task to end: signalled whenever one has and `waiters` is not 0.
  Mutex ended_mu;
  CondVar ended;
};

// Which task a thread is in; a task that drives another timer is in two.
struct RunningTask {
  const Core* core;
  const Shard* shard;
  Wheel::Id id;
  const RunningTask* outer;
};
thread_local const RunningTask* running_task = nullptr;

bool InTaskOf(const Core* core) {
  for (const RunningTask* task = running_task; task != nullptr; task = task->outer) {
    if (task->core == core) return true;
  }
  return false;
}

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

struct Core final : public ClockDriven, public std::enable_shared_from_this<Core> {
  Core(HashedWheelTimer::Options options, bool simulated);
  ~Core() override;

  Tick NowTick() const { return scale.At(options.clock->NowNanos()); }
  // Of a deadline, for which an upper bound of the time will do.
  Tick TickAfter(absl::Duration delay) const {
    return scale.After(has_real_clock ? CycleClock::CeilingNanos() : options.clock->NowNanos(),
                       delay);
  }

  Shard* MyShard() const;
  void MakeWheel(Shard* shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->lock);
  absl::StatusOr<Timeout> Add(TimerTask&& task, absl::Duration delay, bool bounded);
  bool TakeCredit(bool bounded);
  absl::Status Refusal(bool stopped) const;
  void ReturnCredit();

  // When a shard next has something to do.
  static Tick NextEventOf(Shard* shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->lock) {
    return shard->stopped || !shard->wheel.has_value() ? Wheel::kNever : shard->wheel->NextEvent();
  }

  // Runs tasks up to now, at most `max_tasks`, in due-tick order across shards.
  int64_t RunDueTasks(int64_t max_tasks);
  // Runs one shard's tasks up to `to`; returns when it next has something to do.
  Tick RunShard(Shard* shard, Tick to, int64_t max_tasks, int64_t* ran);
  // Runs the task of an entry that was popped, unless it was cancelled meanwhile. Has the lock
  // before and after, not between.
  void RunEntry(Shard* shard, Wheel::Id id, int64_t due_nanos)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->lock);
  // Runs and destroys `task`. Returns false if it threw.
  bool RunTask(Shard* shard, Wheel::Id id, TimerTask* task) const;
  void Report(const char* what) const;

  // ClockDriven.
  std::optional<int64_t> NextDueNanos() override;
  int64_t RunDue() override { return RunDueTasks(std::numeric_limits<int64_t>::max()); }

  absl::Status StartDriver();
  void Drive();
  void Wake();
  // If the driver sleeps until after `tick`.
  void WakeFor(Shard* shard, Tick tick) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->lock);
  // `wait`: for running tasks to end.
  std::vector<TimerTask> Stop(bool wait);

  // Constant after construction.
  const HashedWheelTimer::Options options;
  const TickScale scale;  // tick 0 is when the timer was made
  const bool has_thread;
  const bool has_real_clock;
  std::vector<Shard*> shards;  // their number is a power of two
  uint32_t shard_mask = 0;

  // Own synchronization.
  std::atomic<int64_t> credits_taken{0};  // counted if there is a bound
  std::atomic<bool> driver_started{false};
  std::atomic<bool> stopping{false};

  Mutex stop_mu;  // one Stop at a time
  bool stop_done ABSL_GUARDED_BY(stop_mu) = false;

  Mutex mu;
  CondVar woken_cv;
  bool woken ABSL_GUARDED_BY(mu) = false;
  std::thread driver ABSL_GUARDED_BY(mu);
};

Core::Core(HashedWheelTimer::Options o, bool simulated)
    : options(std::move(o)),
      scale(options.clock->NowNanos(), absl::ToInt64Nanoseconds(options.tick_duration)),
      has_thread(!simulated && !options.manual_drive),
      has_real_clock(options.clock == Clock::Real()) {
  // Two a processor: threads then seldom share one.
  const uint32_t processors = std::max(std::thread::hardware_concurrency(), 1u);
  const uint32_t count = simulated ? 1 : std::min(absl::bit_ceil(2 * processors), kMaxShards);
  for (uint32_t i = 0; i < count; ++i) {
    Shard* const shard = ShardPool::Get().Take();
    SpinLockHolder lock(&shard->lock);
    shard->core = this;
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

// Adding.

inline Shard* Core::MyShard() const {
  static std::atomic<uint32_t> threads{0};
  thread_local uint32_t mine = UINT32_MAX;
  if (ABSL_PREDICT_FALSE(mine == UINT32_MAX)) {
    mine = threads.fetch_add(1, std::memory_order_relaxed) & (UINT32_MAX >> 1);
  }
  return shards[mine & shard_mask];
}

bool Core::TakeCredit(bool bounded) {
  const int64_t bound = options.max_pending_timeouts;
  if (credits_taken.fetch_add(1, std::memory_order_relaxed) < bound || !bounded) return true;
  credits_taken.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

inline void Core::ReturnCredit() {
  if (options.max_pending_timeouts != 0) credits_taken.fetch_sub(1, std::memory_order_relaxed);
}

absl::Status Core::Refusal(bool stopped) const {
  if (stopped) return absl::FailedPreconditionError(absl::StrCat(options.name, ": is stopped"));
  return absl::ResourceExhaustedError(absl::StrCat(options.name, ": no memory for a timeout"));
}

void Core::MakeWheel(Shard* shard) const {
  Wheel::Options wheel_options;
  wheel_options.ticks_per_wheel = options.ticks_per_wheel;
  wheel_options.keep_insertion_order = options.clock->DrivesTimers();
  wheel_options.first_generation = shard->first_generation;
  shard->wheel.emplace(wheel_options, &shard->slab);
  shard->wheel->Advance(NowTick());
}

absl::StatusOr<Timeout> Core::Add(TimerTask&& task, absl::Duration delay, bool bounded) {
  if (ABSL_PREDICT_FALSE(task == nullptr)) {
    return absl::InvalidArgumentError("task: must not be empty");
  }
  if (ABSL_PREDICT_FALSE(has_thread && !driver_started.load(std::memory_order_acquire))) {
    const absl::Status status = StartDriver();
    if (!status.ok()) return status;
  }
  if (options.max_pending_timeouts != 0 && !TakeCredit(bounded)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.name, ": ", options.max_pending_timeouts,
                     " timeouts are pending, as many as max_pending_timeouts allows"));
  }
  const Tick tick = TickAfter(delay);
  Shard* const shard = MyShard();
  Wheel::Id id;
  bool stopped;
  bool wake = false;
  {
    SpinLockHolder lock(&shard->lock);
    stopped = shard->stopped;
    if (ABSL_PREDICT_TRUE(!stopped)) {
      if (ABSL_PREDICT_FALSE(!shard->wheel.has_value())) MakeWheel(shard);
      id = shard->wheel->Schedule(tick, std::move(task));
      ++shard->scheduled;
      if (tick < shard->wake_tick) {
        shard->wake_tick = tick;
        wake = true;
      }
    }
  }
  if (ABSL_PREDICT_FALSE(id.generation == 0)) {
    ReturnCredit();
    return Refusal(stopped);
  }
  if (ABSL_PREDICT_FALSE(wake)) Wake();
  return Timeout(shard, id.index, id.generation);
}

// Running.

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
    next[i] = NextEventOf(shards[i]);
    if (next[i] > now && shards[i]->wheel.has_value()) {
      int budget = 1;
      shards[i]->wheel->PopDue(now, &budget);  // pops nothing, moves on
    }
  }
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
    next = std::min(next, NextEventOf(shard));
  }
  const int64_t nanos = scale.NanosOf(next);
  if (nanos == kForeverNanos) return std::nullopt;
  return nanos;
}

// The driver.

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
  {
    MutexLock lock(&mu);
    woken = true;
  }
  woken_cv.Signal();
}

void Core::WakeFor(Shard* shard, Tick tick) {
  if (ABSL_PREDICT_TRUE(tick >= shard->wake_tick)) return;
  shard->wake_tick = tick;
  Wake();
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
    for (size_t i = before; i < tasks.size(); ++i) ReturnCredit();
    if (!wait) continue;
    MutexLock ended_lock(&shard->ended_mu);
    const auto running = [shard] {
      SpinLockHolder lock(&shard->lock);
      return shard->running > 0;
    };
    {
      SpinLockHolder lock(&shard->lock);
      ++shard->waiters;
    }
    while (running()) shard->ended.Wait(&shard->ended_mu);
    SpinLockHolder lock(&shard->lock);
    --shard->waiters;
  }
  return tasks;
}

}  // namespace internal_timer

using internal_timer::Core;
using internal_timer::RunningTask;
using internal_timer::Shard;

// Timeout. A shard without a timer, or with another, has no entry of the handle's generation.

bool Timeout::Cancel() {
  if (ABSL_PREDICT_FALSE(generation_ == 0)) return false;
  TimerTask task;  // destroyed after the lock is released
  // An entry that another processor wrote is on its way while the lock is waited for.
  __builtin_prefetch(shard_->slab.At(index_), 1);
  {
    SpinLockHolder lock(&shard_->lock);
    if (!shard_->wheel.has_value()) return false;
    task = shard_->wheel->Take({index_, generation_});
    if (task == nullptr) return false;
    ++shard_->cancelled;
    shard_->core->ReturnCredit();
  }
  generation_ = 0;
  return true;
}

bool Timeout::IsExpired() const {
  if (generation_ == 0) return false;
  SpinLockHolder lock(&shard_->lock);
  if (!shard_->wheel.has_value()) return true;
  const Wheel::State state = shard_->wheel->StateOf({index_, generation_});
  return state == Wheel::State::kFree || state == Wheel::State::kStarted;
}

bool Timeout::Reschedule(absl::Duration delay) {
  if (ABSL_PREDICT_FALSE(generation_ == 0)) return false;
  // To a later deadline without the lock, where the clock can be read without the timer.
  if (shard_->has_real_clock.load(std::memory_order_relaxed)) {
    TimerEntry* const entry = shard_->slab.At(index_);
    __builtin_prefetch(entry, 1);  // while the clock is read
    const Wheel::Tick tick = shard_->scale.Get().After(CycleClock::CeilingNanos(), delay);
    if (entry->PutOff(generation_, tick, shard_->lock)) return true;
  }
  SpinLockHolder lock(&shard_->lock);
  if (!shard_->wheel.has_value()) return false;
  Core* const core = shard_->core;
  const Wheel::Tick tick = core->TickAfter(delay);
  if (!shard_->wheel->Reschedule({index_, generation_}, tick)) return false;
  core->WakeFor(shard_, tick);
  return true;
}

void Timeout::Wait() {
  if (generation_ == 0) return;
  for (const RunningTask* task = internal_timer::running_task; task != nullptr;
       task = task->outer) {
    if (task->shard == shard_ && task->id.index == index_ && task->id.generation == generation_) {
      return;
    }
  }
  const auto running = [this] {
    SpinLockHolder lock(&shard_->lock);
    return shard_->wheel.has_value() &&
           shard_->wheel->StateOf({index_, generation_}) == Wheel::State::kStarted;
  };
  MutexLock ended_lock(&shard_->ended_mu);
  {
    SpinLockHolder lock(&shard_->lock);
    ++shard_->waiters;
  }
  while (running()) shard_->ended.Wait(&shard_->ended_mu);
  SpinLockHolder lock(&shard_->lock);
  --shard_->waiters;
}

// HashedWheelTimer.

absl::StatusOr<std::unique_ptr<HashedWheelTimer>> HashedWheelTimer::Create(Options options) {
  if (options.clock == nullptr) return absl::InvalidArgumentError("clock: must not be null");
  if (!(options.tick_duration >= absl::Microseconds(1) &&
        options.tick_duration <= absl::Hours(1))) {
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
  Clock* const clock = options.clock;
  auto core = std::make_shared<Core>(std::move(options), clock->DrivesTimers());
  clock->Attach(core);
  return std::unique_ptr<HashedWheelTimer>(new HashedWheelTimer(std::move(core)));
}

HashedWheelTimer::HashedWheelTimer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

HashedWheelTimer::~HashedWheelTimer() { core_->Stop(!internal_timer::InTaskOf(core_.get())); }

absl::StatusOr<Timeout> HashedWheelTimer::NewTimeout(TimerTask task, absl::Duration delay) {
  return core_->Add(std::move(task), delay, /*bounded=*/true);
}

absl::StatusOr<Timeout> HashedWheelTimer::PutBack(TimerTask task, absl::Duration delay) {
  return core_->Add(std::move(task), delay, /*bounded=*/false);
}

absl::StatusOr<std::vector<TimerTask>> HashedWheelTimer::Stop() {
  if (internal_timer::InTaskOf(core_.get())) {
    return absl::FailedPreconditionError(
        absl::StrCat(core_->options.name, ": Stop called from one of the timer's own tasks"));
  }
  return core_->Stop(/*wait=*/true);
}

int64_t HashedWheelTimer::pending() const { return Stats().pending; }

HashedWheelTimer::Statistics HashedWheelTimer::Stats() const {
  Statistics sum;
  int64_t worst = 0;
  for (Shard* shard : core_->shards) {
    SpinLockHolder lock(&shard->lock);
    if (shard->wheel.has_value()) sum.pending += shard->wheel->pending();
    sum.scheduled += shard->scheduled;
    sum.fired += shard->fired;
    sum.cancelled += shard->cancelled;
    sum.failed += shard->failed;
    worst = std::max(worst, shard->worst_lateness_nanos);
    sum.lateness += shard->lateness;
  }
  sum.worst_lateness = absl::Nanoseconds(worst);
  return sum;
}

const Clock* HashedWheelTimer::clock() const { return core_->options.clock; }

int64_t HashedWheelTimer::RunDue(int64_t max_tasks) {
  const std::shared_ptr<Core> core = core_;  // a task may destroy the timer
  return core->RunDueTasks(max_tasks);
}

std::optional<int64_t> HashedWheelTimer::NextDueNanos() const { return core_->NextDueNanos(); }

}  // namespace failback
