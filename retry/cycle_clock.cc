#include "retry/cycle_clock.h"

#include "retry/clock.h"

#if defined(__x86_64__)

#include <x86intrin.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "retry/mutex.h"

namespace failback {
namespace {

constexpr int64_t kSpanNanos = 100000;   // how long an anchor holds
constexpr int64_t kMarginNanos = 10000;  // for a counter that is read before its turn
constexpr int kIntervals = 4;            // over which the frequency is measured, each of
constexpr int64_t kShortestNanos = 2000000;
constexpr int64_t kLongestNanos = 2000000000;
constexpr uint64_t kPrompt = 1024;  // cycles for a reading that nothing came between

// Both clocks at one time, the counter's reading first.
struct Anchor {
  uint64_t cycles = 0;
  int64_t nanos = 0;
};
thread_local Anchor anchor;

// Nanoseconds a cycle, times 2^32; written before `span_cycles`.
std::atomic<uint64_t> factor{0};
// kSpanNanos in cycles; 0: the factor is not known.
std::atomic<uint64_t> span_cycles{0};

class Calibration {
 public:
  static Calibration& Get() {
    static Calibration* const calibration = new Calibration;
    return *calibration;
  }

  // Whether the kernel keeps its own time by the counter.
  bool trusted() const { return trusted_; }

  // Measures with a reading by any thread, until the frequency is known.
  void Add(const Anchor& now) {
    if (CycleClock::UsesCycles() || !mu_.TryLock()) return;
    const int64_t nanos = now.nanos - before_.nanos;
    if (nanos > kShortestNanos) {
      // The greatest of several: in one the machine may have slept, and only the counter gone on.
      if (nanos < kLongestNanos && now.cycles > before_.cycles) {
        greatest_ = std::max(greatest_,
                             (static_cast<uint64_t>(nanos) << 32) / (now.cycles - before_.cycles));
        if (++intervals_ == kIntervals) Publish();
      }
      before_ = now;
    }
    mu_.Unlock();
  }

 private:
  Calibration() {
    std::string name;
    std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> name;
    trusted_ = name == "tsc";
  }

  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    factor.store(greatest_, std::memory_order_relaxed);
    span_cycles.store((uint64_t{kSpanNanos} << 32) / greatest_, std::memory_order_release);
  }

  bool trusted_ = false;  // written by the constructor only

  Mutex mu_;
  Anchor before_ ABSL_GUARDED_BY(mu_);
  uint64_t greatest_ ABSL_GUARDED_BY(mu_) = 0;
  int intervals_ ABSL_GUARDED_BY(mu_) = 0;
};

ABSL_ATTRIBUTE_NOINLINE int64_t Renew() {
  if (!Calibration::Get().trusted()) return Clock::Real()->NowNanos();
  Anchor now;
  now.cycles = __rdtsc();
  now.nanos = Clock::Real()->NowNanos();
  if (__rdtsc() - now.cycles <= kPrompt) {  // the thread has not lost its processor in between
    Calibration::Get().Add(now);
    anchor = now;
  }
  return now.nanos;
}

}  // namespace

int64_t CycleClock::CeilingNanos() {
  const uint64_t span = span_cycles.load(std::memory_order_acquire);
  const uint64_t since = __rdtsc() - anchor.cycles;  // huge if the counter was set back
  if (ABSL_PREDICT_FALSE(since >= span)) return Renew();
  return anchor.nanos + kMarginNanos +
         static_cast<int64_t>(since * factor.load(std::memory_order_relaxed) >> 32);
}

bool CycleClock::UsesCycles() { return span_cycles.load(std::memory_order_relaxed) != 0; }

}  // namespace failback

#else

namespace failback {

int64_t CycleClock::CeilingNanos() { return Clock::Real()->NowNanos(); }

bool CycleClock::UsesCycles() { return false; }

}  // namespace failback

#endif
