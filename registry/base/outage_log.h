// When to say that something fails, and that it works again: once each, and not at every turn.
//
// What is nearly full takes a small write and refuses a large one, and so on, several times a
// second. A failure is said at once, and so is its end; but when it comes back within a minute, its
// end is said only when nothing has failed for as long.
//
//   if (!status.ok() && outage.Failed(now)) Log(…, "cannot be written");
//   if (status.ok() && outage.Worked(now)) Log(…, "can be written again");
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_BASE_OUTAGE_LOG_H_
#define FAILBACK_REGISTRY_BASE_OUTAGE_LOG_H_

#include <cstdint>

namespace failback {

class OutageLog {
 public:
  // Within which a failure is one more turn of the last one.
  static constexpr int64_t kTurnNanos = int64_t{60} * 1000 * 1000 * 1000;

  // Each: true when it is to be said. `now_nanos` is of a monotonic clock.
  bool Failed(int64_t now_nanos) {
    last_failed_nanos_ = now_nanos;
    if (told_) return false;
    returned_ = ended_ && now_nanos - ended_nanos_ < kTurnNanos;
    told_ = true;
    return true;
  }
  bool Worked(int64_t now_nanos) {
    if (!told_ || (returned_ && now_nanos - last_failed_nanos_ < kTurnNanos)) return false;
    told_ = false;
    ended_ = true;
    ended_nanos_ = now_nanos;
    return true;
  }

 private:
  bool told_ = false;      // that it fails
  bool returned_ = false;  // soon after its end was said
  bool ended_ = false;     // before, and that was said
  int64_t last_failed_nanos_ = 0;
  int64_t ended_nanos_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_OUTAGE_LOG_H_
