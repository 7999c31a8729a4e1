// Rise and fall: when a row of tries makes a check pass or fail.
//
// The first `rise` passes in a row make it passing, the first `fall` failures in a row critical;
// anything less changes nothing, so one lost packet does not take a service out of rotation and
// one lucky answer does not put it back (HAProxy's rule, and of Kubernetes' thresholds).
//
//   CheckCounter counter(/*rise=*/1, /*fall=*/3);
//   if (counter.Count(passed)) Report(counter.state());
//
// Thread safety: thread-compatible; pure.

#ifndef FAILBACK_AGENT_HEALTH_CHECK_COUNTER_H_
#define FAILBACK_AGENT_HEALTH_CHECK_COUNTER_H_

#include <cstdint>

namespace failback {

enum class CheckState { kUnknown, kPassing, kCritical };

class CheckCounter {
 public:
  // Both at least 1.
  CheckCounter(uint32_t rise, uint32_t fall) : rise_(rise), fall_(fall) {}

  CheckState state() const { return state_; }

  // One more try has ended. Returns whether the state has changed.
  bool Count(bool passed) {
    if (passed != last_passed_) in_a_row_ = 0;
    last_passed_ = passed;
    if (in_a_row_ < (passed ? rise_ : fall_)) ++in_a_row_;
    if (in_a_row_ < (passed ? rise_ : fall_)) return false;
    const CheckState next = passed ? CheckState::kPassing : CheckState::kCritical;
    const bool changed = next != state_;
    state_ = next;
    return changed;
  }

 private:
  const uint32_t rise_;
  const uint32_t fall_;
  CheckState state_ = CheckState::kUnknown;
  bool last_passed_ = false;
  uint32_t in_a_row_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_CHECK_COUNTER_H_
