// One workload on one subject: wheel_bench WORKLOAD SUBJECT. Prints lines "metric value unit".
// The script `run` beside this file alternates subjects and takes medians.

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/wheel/subjects.h"

namespace failback::bench {
namespace {

constexpr int kMillion = 1000000;

uint64_t SplitMix64(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Delays of 1 to 60000 ms.
class Delays {
 public:
  explicit Delays(uint64_t seed) {
    for (int64_t& delay : table_)
      delay = 1 + static_cast<int64_t>((SplitMix64(&seed) >> 33) % 60000);
  }
  int64_t operator[](size_t i) const { return table_[i % kSize]; }

 private:
  static constexpr size_t kSize = 16384;
  std::vector<int64_t> table_ = std::vector<int64_t>(kSize);
};

void Print(const char* metric, double value, const char* unit) {
  std::printf("%s %.4f %s\n", metric, value, unit);
}

std::atomic<int64_t> fired{0};
// What a task does. Relaxed, as only one thread runs tasks.
void Fire() { fired.store(fired.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
constexpr auto kTask = [] { Fire(); };

void AwaitFired(int64_t count) {
  while (fired.load() < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

int64_t ProcessCpuNanos() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

// Sleeps and CPU time of the thread called "wheel-driver".
struct DriverUse {
  int64_t sleeps = 0;
  int64_t cpu_nanos = 0;
};

DriverUse ReadDriverUse() {
  DriverUse use;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* const entry = readdir(tasks)) {
    const std::string task = std::string("/proc/self/task/") + entry->d_name;
    std::string name;
    std::getline(std::ifstream(task + "/comm"), name);
    if (name != "wheel-driver") continue;
    std::ifstream(task + "/schedstat") >> use.cpu_nanos;
    std::ifstream status(task + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("voluntary_ctxt_switches:", 0) == 0)
        use.sleeps = std::atoll(line.c_str() + 24);
    }
  }
  closedir(tasks);
  return use;
}

// Live preload: delays of 1 to 60000 ms. In a service they fire while it is measured, as they
// would.
template <typename Subject>
std::vector<typename Subject::Handle> Preload(Subject* subject, int64_t count) {
  const Delays delays(42);
  std::vector<typename Subject::Handle> handles;
  handles.reserve(count);
  for (int64_t i = 0; i < count; ++i) handles.push_back(subject->Schedule(delays[i], kTask));
  return handles;
}

// A ring's delays are 10 s longer in services, so that none is due before it is cancelled: a
// multimap's iterators do not outlive their entry.
template <typename Subject>
void ChurnOnce(Subject* subject, uint64_t seed, int64_t longer_ms, int64_t pairs) {
  const Delays delays(seed);
  std::vector<typename Subject::Handle> ring;
  for (int i = 0; i < 1024; ++i) ring.push_back(subject->Schedule(longer_ms + delays[i], kTask));
  for (int64_t i = 0; i < pairs; ++i) {
    typename Subject::Handle& oldest = ring[i % 1024];
    subject->Cancel(&oldest);
    oldest = subject->Schedule(longer_ms + delays[i], kTask);
  }
  for (typename Subject::Handle& handle : ring) subject->Cancel(&handle);
}

template <typename Subject>
void Churn(int producers, int64_t preload, int64_t longer_ms) {
  constexpr int64_t kPairs = 2 * kMillion;
  Subject subject;
  const auto handles = Preload(&subject, preload);
  ChurnOnce(&subject, 7, longer_ms, 100000);  // warm-up
  const int64_t start = NowNanos();
  if (producers == 1) {
    ChurnOnce(&subject, 1000, longer_ms, kPairs);
  } else {
    std::vector<std::thread> threads;
    for (int k = 0; k < producers; ++k) {
      threads.emplace_back([&, k] { ChurnOnce(&subject, 1000 + k, longer_ms, kPairs); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Print("schedule_cancel", static_cast<double>(NowNanos() - start) / (kPairs * producers), "ns");
}

// Waits for the other thread, which may have lost its processor.
void Spin(int* spins) {
  if (++*spins > 10000) std::this_thread::yield();
}

// One thread schedules, the other cancels. Handles go through a ring of one producer and one
// consumer.
template <typename Subject>
void CancelCrossThread() {
  constexpr int64_t kPairs = kMillion;
  constexpr int64_t kRing = 1024;
  Subject subject;
  const Delays delays(1000);
  std::vector<typename Subject::Handle> ring(kRing);
  alignas(128) std::atomic<int64_t> scheduled{0};
  alignas(128) std::atomic<int64_t> cancelled{0};
  const int64_t start = NowNanos();
  std::thread canceller([&] {
    int64_t seen = 0;
    for (int64_t i = 0; i < kPairs; ++i) {
      for (int spins = 0; seen <= i; seen = scheduled.load(std::memory_order_acquire)) Spin(&spins);
      subject.Cancel(&ring[i % kRing]);
      if (i % 16 == 15) cancelled.store(i + 1, std::memory_order_release);
    }
  });
  int64_t seen = 0;
  for (int64_t i = 0; i < kPairs; ++i) {
    for (int spins = 0; i - seen >= kRing; seen = cancelled.load(std::memory_order_acquire)) {
      Spin(&spins);
    }
    ring[i % kRing] = subject.Schedule(10000 + delays[i], kTask);
    if (i % 16 == 15) scheduled.store(i + 1, std::memory_order_release);
  }
  scheduled.store(kPairs, std::memory_order_release);
  canceller.join();
  Print("schedule_cancel", static_cast<double>(NowNanos() - start) / kPairs, "ns");
}

template <typename Subject>
void Reschedule(int producers) {
  constexpr int64_t kOperations = kMillion;
  Subject subject;
  uint64_t seed = 42;
  std::vector<typename Subject::Handle> handles;
  handles.reserve(kMillion);
  for (int i = 0; i < kMillion; ++i) {
    handles.push_back(subject.Schedule(60000 + (SplitMix64(&seed) >> 33) % 60000, kTask));
  }
  const int64_t mine = kMillion / producers;
  const auto produce = [&](int k) {
    uint64_t random = 1000 + k;
    for (int64_t i = 0; i < kOperations; ++i) {
      const int64_t which = k * mine + (SplitMix64(&random) >> 33) % mine;
      subject.Reschedule(&handles[which], 130000);
    }
  };
  const int64_t start = NowNanos();
  std::vector<std::thread> threads;
  for (int k = 1; k < producers; ++k) threads.emplace_back(produce, k);
  produce(0);
  for (std::thread& thread : threads) thread.join();
  Print("reschedule", static_cast<double>(NowNanos() - start) / (kOperations * producers), "ns");
  _exit((std::fflush(stdout), 0));  // freeing a million is not what is measured
}

// Driven by hand, a second pass over memory that is there already.
template <typename Subject>
void BulkRaw() {
  Subject subject;
  int64_t now = 0;
  int64_t elapsed = 0;
  for (int pass = 0; pass < 2; ++pass) {
    uint64_t seed = 42;
    const int64_t start = NowNanos();
    for (int i = 0; i < kMillion; ++i) {
      subject.Schedule(1000 + (SplitMix64(&seed) >> 33) % 59000, kTask);
    }
    now += 60000;
    subject.Advance(now);
    elapsed = NowNanos() - start;
  }
  if (fired.exchange(0) != 2 * kMillion) std::abort();
  Print("by_hand", static_cast<double>(elapsed) / kMillion, "ns");
}

// Scheduled, and expired in real time, within one to five seconds; the process's CPU time.
template <typename Subject>
void BulkService() {
  Subject subject;
  uint64_t seed = 42;
  std::vector<typename Subject::Handle> handles;
  handles.reserve(kMillion);
  const int64_t start = ProcessCpuNanos();
  for (int i = 0; i < kMillion; ++i) {
    handles.push_back(subject.Schedule(1000 + (SplitMix64(&seed) >> 33) % 4000, kTask));
  }
  AwaitFired(kMillion);
  Print("cpu", static_cast<double>(ProcessCpuNanos() - start) / kMillion, "ns");
}

int64_t ResidentBytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Beside what the caller keeps: the handles' array is touched before.
template <typename Subject>
void Bytes() {
  Subject subject;
  std::vector<typename Subject::Handle> handles(kMillion);
  uint64_t seed = 42;
  const int64_t before = ResidentBytes();
  for (int i = 0; i < kMillion; ++i) {
    handles[i] = subject.Schedule(60000 + (SplitMix64(&seed) >> 33) % 60000, kTask);
  }
  Print("resident", static_cast<double>(ResidentBytes() - before) / kMillion, "bytes");
  Print("handle", sizeof(typename Subject::Handle), "bytes");
  if (std::is_same_v<Subject, FailbackService>) {
    Print("entry_without_callback", Wheel::kEntryBytes, "bytes");
  }
  std::fflush(stdout);
  _exit(0);
}

template <typename Subject>
void Lateness() {
  constexpr int kTimers = 100000;
  Subject subject;
  std::vector<typename Subject::Handle> handles;
  handles.reserve(kTimers);
  static std::vector<int64_t> deadlines(kTimers);
  static std::vector<int64_t> late(kTimers);
  uint64_t seed = 42;
  for (int i = 0; i < kTimers; ++i) {
    const int64_t delay_ms = 200 + (SplitMix64(&seed) >> 33) % 2000;
    deadlines[i] = NowNanos() + delay_ms * 1000000;
    handles.push_back(subject.Schedule(delay_ms, [i] {
      late[i] = NowNanos() - deadlines[i];
      Fire();
    }));
  }
  AwaitFired(kTimers);
  std::sort(late.begin(), late.end());
  Print("early", std::lower_bound(late.begin(), late.end(), 0) - late.begin(), "timers");
  Print("p50", late[kTimers / 2] / 1e6, "ms");
  Print("p99", late[kTimers / 100 * 99] / 1e6, "ms");
}

void PrintRest() {
  constexpr int kSeconds = 3;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const DriverUse before = ReadDriverUse();
  std::this_thread::sleep_for(std::chrono::seconds(kSeconds));
  const DriverUse after = ReadDriverUse();
  Print("wake_ups", static_cast<double>(after.sleeps - before.sleeps) / kSeconds, "1/s");
  Print("cpu", (after.cpu_nanos - before.cpu_nanos) / (kSeconds * 1e9) * 100, "%");
  std::fflush(stdout);
  _exit(0);
}

template <typename Subject>
void IdleOne() {
  Subject subject;
  std::vector<typename Subject::Handle> handles;
  handles.push_back(subject.Schedule(60000, kTask));
  PrintRest();
}

template <typename Subject>
void Hold() {
  Subject subject;
  uint64_t seed = 42;
  std::vector<typename Subject::Handle> handles;
  handles.reserve(kMillion);
  for (int i = 0; i < kMillion; ++i) {
    handles.push_back(subject.Schedule(60000 + (SplitMix64(&seed) >> 33) % 60000, kTask));
  }
  PrintRest();
}

// A million due at one tick, while a producer schedules and cancels.
template <typename Subject>
void Burst() {
  Subject subject;
  std::vector<typename Subject::Handle> handles;
  handles.reserve(kMillion);
  static std::atomic<int64_t> first{0}, last{0};
  const int64_t due = NowNanos() + 3000000000;
  for (int i = 0; i < kMillion; ++i) {
    const int64_t left_ms = (due - NowNanos()) / 1000000;
    handles.push_back(subject.Schedule(left_ms, [] {
      const int64_t before = fired.load(std::memory_order_relaxed);
      if (before == 0) first = NowNanos();
      fired.store(before + 1, std::memory_order_relaxed);
      if (before + 1 == kMillion) last = NowNanos();
    }));
  }
  int64_t longest = 0;
  std::thread producer([&] {
    const Delays delays(1000);
    for (int64_t i = 0; last == 0; ++i) {
      const int64_t start = NowNanos();
      auto handle = subject.Schedule(20000 + delays[i], kTask);
      subject.Cancel(&handle);
      const int64_t took = NowNanos() - start;
      if (first != 0) longest = std::max(longest, took);
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  });
  producer.join();
  Print("drain", (last - first) / 1e6, "ms");
  Print("longest_stall", longest / 1e6, "ms");
  std::fflush(stdout);
  _exit(0);
}

void StopRace() {
  constexpr int kRounds = 10000;
  int64_t lost = 0;
  for (int round = 0; round < kRounds; ++round) {
    HashedWheelTimer::Options options;
    options.tick_duration = absl::Milliseconds(1);
    auto timer = HashedWheelTimer::Create(options).value();
    std::atomic<int64_t> accepted{0}, ran{0};
    std::thread producer([&] {
      for (int i = 0; timer->NewTimeout([&] { ++ran; }, absl::Microseconds(i % 3000)).ok(); ++i) {
        ++accepted;
      }
    });
    while (accepted < 1 + round % 50) std::this_thread::yield();
    const int64_t returned = timer->Stop().value().size();
    producer.join();
    lost += accepted - ran - returned;
  }
  Print("lost", lost, "tasks");
  Print("rounds", kRounds, "rounds");
}

template <typename Raw>
bool RunRaw(const std::string& workload) {
  if (workload == "churn-raw/0") return Churn<Raw>(1, 0, 0), true;
  if (workload == "churn-raw/100k") return Churn<Raw>(1, 100000, 0), true;
  if (workload == "churn-raw/1m") return Churn<Raw>(1, kMillion, 0), true;
  return false;
}

template <typename Service>
bool RunService(const std::string& workload) {
  constexpr int64_t kLonger = 10000;
  if (workload == "churn-service-1p/0") return Churn<Service>(1, 0, kLonger), true;
  if (workload == "churn-service-1p/100k") return Churn<Service>(1, 100000, kLonger), true;
  if (workload == "churn-service-1p/1m") return Churn<Service>(1, kMillion, kLonger), true;
  if (workload == "churn-service-2p/0") return Churn<Service>(2, 0, kLonger), true;
  if (workload == "churn-service-2p/100k") return Churn<Service>(2, 100000, kLonger), true;
  if (workload == "churn-service-2p/1m") return Churn<Service>(2, kMillion, kLonger), true;
  if (workload == "cancel-cross-thread") return CancelCrossThread<Service>(), true;
  if (workload == "reschedule-1m-1p") return Reschedule<Service>(1), true;
  if (workload == "reschedule-1m-2p") return Reschedule<Service>(2), true;
  if (workload == "bytes-per-timeout") return Bytes<Service>(), true;
  if (workload == "lateness-1ms") return Lateness<Service>(), true;
  if (workload == "idle-one") return IdleOne<Service>(), true;
  if (workload == "hold-1m") return Hold<Service>(), true;
  if (workload == "burst-1m") return Burst<Service>(), true;
  return false;
}

// A subject that has both runs each workload on the one that it is made for; bulk-1m on both.
template <typename Raw, typename Service>
bool RunBoth(const std::string& workload) {
  if (workload == "bulk-1m") return BulkRaw<Raw>(), BulkService<Service>(), true;
  return RunRaw<Raw>(workload) || RunService<Service>(workload);
}

[[noreturn]] void BusyLoop() {
  for (volatile uint64_t turns = 0;;) turns = turns + 1;
}

bool Run(const std::string& workload, const std::string& subject) {
  if (workload == "busy-loop") BusyLoop();
  if (subject == "failback") {
    if (workload == "stop-race") return StopRace(), true;
    return RunBoth<RawWheel, FailbackService>(workload);
  }
  if (subject == "heap") return RunBoth<RawHeap, LockedService<RawHeap>>(workload);
  if (subject == "multimap") return RunBoth<RawMultimap, LockedService<RawMultimap>>(workload);
  if (subject == "asio") {
    if (workload == "bulk-1m") return BulkService<AsioService>(), true;
    return RunService<AsioService>(workload);
  }
  return false;
}

}  // namespace
}  // namespace failback::bench

int main(int argc, char** argv) {
  if (argc != 3 || !failback::bench::Run(argv[1], argv[2])) {
    std::fprintf(stderr, "usage: wheel_bench WORKLOAD SUBJECT\n");
    return 2;
  }
  return 0;
}
