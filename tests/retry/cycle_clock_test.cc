#include "retry/cycle_clock.h"

#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "retry/clock.h"

namespace failback {
namespace {

// Calls until the frequency is known, or half a minute is over; says which.
bool AwaitCycles() {
  const int64_t deadline = Clock::Real()->NowNanos() + int64_t{30} * 1000000000;
  while (!CycleClock::UsesCycles() && CycleClock::CeilingNanos() < deadline) {
  }
  return CycleClock::UsesCycles();
}

bool KernelTrustsCycles() {
  std::string name;
  std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> name;
  return name == "tsc";
}

TEST(CycleClockTest, UsesTheCounterWhereTheKernelDoes) {
#if defined(__x86_64__)
  if (KernelTrustsCycles()) {
    EXPECT_TRUE(AwaitCycles());
    return;
  }
#endif
  CycleClock::CeilingNanos();
  EXPECT_FALSE(CycleClock::UsesCycles());
}

// Each thread holds the result against the latest time that any thread has been told, and against
// the time after it. The runs are long enough for many anchors, on both sides of the calibration.
TEST(CycleClockTest, IsNeverBeforeTheClockAndHardlyAfterIt) {
  constexpr int kThreads = 3;
  constexpr int64_t kNanos = 300000000;
  std::atomic<int64_t> latest{0};
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> early{0};
  std::atomic<int64_t> late{0};
  const auto compare = [&] {
    const int64_t end = Clock::Real()->NowNanos() + kNanos;
    for (int64_t now = 0; now < end; ++calls) {
      now = Clock::Real()->NowNanos();
      int64_t seen = latest.load();
      while (seen < now && !latest.compare_exchange_weak(seen, now)) {
      }
      const int64_t told = latest.load();
      const int64_t ceiling = CycleClock::CeilingNanos();
      const int64_t after = Clock::Real()->NowNanos();
      early += ceiling < told;
      late += ceiling > after + CycleClock::kMostAheadNanos;
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(compare);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(calls, 0);
  EXPECT_EQ(0, early) << "of " << calls;
  EXPECT_EQ(0, late) << "of " << calls;
}

}  // namespace
}  // namespace failback
