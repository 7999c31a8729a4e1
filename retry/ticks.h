// TickScale: from a clock's nanoseconds to a timer's ticks and back.
//
// Thread safety: constant after construction; SharedTickScale from any thread.

#ifndef FAILBACK_RETRY_TICKS_H_
#define FAILBACK_RETRY_TICKS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "absl/numeric/bits.h"
#include "absl/time/time.h"
#include "retry/wheel.h"

namespace failback {

inline constexpr int64_t kForeverNanos = std::numeric_limits<int64_t>::max();

class TickScale {
 public:
  using Tick = Wheel::Tick;

  // Tick 0 is at `origin_nanos`, which is not negative. `tick_nanos` is 2 or more.
  TickScale(int64_t origin_nanos, int64_t tick_nanos)
      : origin_nanos_(origin_nanos),
        tick_nanos_(tick_nanos),
        shift_(absl::bit_width(static_cast<uint64_t>(tick_nanos) - 1)),
        factor_(static_cast<uint64_t>(
            (((static_cast<unsigned __int128>(1) << shift_) - tick_nanos) << 64) / tick_nanos +
            1)) {}

  // The first tick at or after `delay` from now: a task is never early. At least one nanosecond
  // from now, so that no delay at all means the next tick; one that overflows means kNever.
  Tick After(int64_t now_nanos, absl::Duration delay) const {
    const int64_t nanos = std::max<int64_t>(absl::ToInt64Nanoseconds(delay), 1);
    if (nanos > kForeverNanos - now_nanos || nanos == kForeverNanos) return Wheel::kNever;
    return Quotient(static_cast<uint64_t>(now_nanos + nanos - origin_nanos_) + tick_nanos_ - 1);
  }

  // The last tick at or before `nanos`.
  Tick At(int64_t nanos) const {
    return nanos <= origin_nanos_ ? 0 : Quotient(nanos - origin_nanos_);
  }

  // When `tick` is; kForeverNanos if the clock cannot say it.
  int64_t NanosOf(Tick tick) const {
    const uint64_t left = kForeverNanos - origin_nanos_;
    return tick > left / tick_nanos_ ? kForeverNanos : origin_nanos_ + tick * tick_nanos_;
  }

 private:
  friend class SharedTickScale;
  TickScale() = default;

  // Divides by tick_nanos_ with a multiplication (Granlund and Montgomery, 1994); exact for every
  // dividend. A processor's own division costs as much as the rest of a schedule.
  uint64_t Quotient(uint64_t dividend) const {
    const uint64_t high =
        static_cast<uint64_t>((static_cast<unsigned __int128>(factor_) * dividend) >> 64);
    return (high + ((dividend - high) >> 1)) >> (shift_ - 1);
  }

  int64_t origin_nanos_;
  int64_t tick_nanos_;
  int shift_;  // 1 or more
  uint64_t factor_;
};

// A scale that may be read while it is being replaced. What is read then is of no use, and
// harmless.
class SharedTickScale {
 public:
  void Set(const TickScale& scale) {
    origin_nanos_.store(scale.origin_nanos_, std::memory_order_relaxed);
    tick_nanos_.store(scale.tick_nanos_, std::memory_order_relaxed);
    shift_.store(scale.shift_, std::memory_order_relaxed);
    factor_.store(scale.factor_, std::memory_order_relaxed);
  }
  TickScale Get() const {
    TickScale scale;
    scale.origin_nanos_ = origin_nanos_.load(std::memory_order_relaxed);
    scale.tick_nanos_ = tick_nanos_.load(std::memory_order_relaxed);
    scale.shift_ = shift_.load(std::memory_order_relaxed);
    scale.factor_ = factor_.load(std::memory_order_relaxed);
    return scale;
  }

 private:
  std::atomic<int64_t> origin_nanos_{0};
  std::atomic<int64_t> tick_nanos_{2};
  std::atomic<int> shift_{1};
  std::atomic<uint64_t> factor_{1};
};

}  // namespace failback

#endif  // FAILBACK_RETRY_TICKS_H_
