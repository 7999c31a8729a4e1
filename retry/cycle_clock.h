// CycleClock: an upper bound of the present time, for half the price of the time.
//
// A deadline is made of "now" and a delay, and may be late, but not early. So it needs no exact
// time, only one that is not before the true one. Choose it for that and for nothing else: what
// waits for a deadline reads Clock.
//
// Algorithm: each thread keeps an anchor, a reading of the monotonic clock with that of the
// processor's cycle counter just before it. For the next 100 us the time is the anchor's, the
// cycles since, and a margin of 10 us. Then the anchor is renewed. The monotonic clock itself
// first waits for all that the processor has under way, cache misses too; the counter alone does
// not, and that is the gain. It is also what the margin is for: the counter may be read before a
// load that precedes it in the program has brought in a later time from another processor. 2 us
// have been seen. The margin covers what an NTP daemon bends the clock besides, 0.1 us.
//
// This needs counters that run evenly and together. That is not taken on trust: where the kernel
// does not keep its own time by them (`current_clocksource` is not `tsc`), or the processor has no
// such counter, the result is the monotonic clock's. A machine that slept, was stopped or was moved
// finds its anchors old, or in the future, and renews them.
//
// Thread safety: from any thread.

#ifndef FAILBACK_RETRY_CYCLE_CLOCK_H_
#define FAILBACK_RETRY_CYCLE_CLOCK_H_

#include <cstdint>

namespace failback {

class CycleClock {
 public:
  // The result is at most so much later than the true time, unless the thread lost its processor.
  static constexpr int64_t kMostAheadNanos = 11000;

  // Monotonic nanoseconds as Clock::Real()'s, not before any that it has returned until now. Two
  // calls may disagree by kMostAheadNanos about which was first.
  static int64_t CeilingNanos();

  // True if the counter is used: the kernel trusts it, and CeilingNanos has found its frequency,
  // for which it is called over some ten milliseconds.
  static bool UsesCycles();
};

}  // namespace failback

#endif  // FAILBACK_RETRY_CYCLE_CLOCK_H_
