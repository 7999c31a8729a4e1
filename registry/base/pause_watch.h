// Whether this process was paused (stopped, starved, on a machine that slept) while it kept leases.
//
// A paused process reads no renewals, and its timeouts have all passed when it comes back. A
// lease that has run out says nothing about its client then. Two things show it: a lease's timeout
// that comes late, and between leases that are far apart a heartbeat that does. Late is half of the
// smallest TTL. The heartbeat is due every eighth of it, so that no absence of five eighths goes
// unnoticed: who renews every third of a TTL has two thirds left at each renewal. Absences that
// follow on one another within a TTL take that time, too, and are added up; what is shorter than the
// heartbeat's period is none.
//
// The owner runs the heartbeat on its timer. When it is notified of an absence it gives every lease
// a full TTL from now.
//
// Example:
//
//   watch.Granted(ttl);                                // for each lease
//   if (!watch.beating()) After(watch.Begin(now), …);  // the heartbeat, and again when it has come
//   … in a lease's timeout: if (watch.Notice(deadline, now)) ExtendAll();
//   … in the heartbeat:     if (watch.Notice(now, now)) ExtendAll(); watch.End();
//
// All times are nanoseconds of a monotonic clock. Thread safety: none; the owner's lock guards it.

#ifndef FAILBACK_REGISTRY_BASE_PAUSE_WATCH_H_
#define FAILBACK_REGISTRY_BASE_PAUSE_WATCH_H_

#include <algorithm>
#include <cstdint>

namespace failback {

class PauseWatch {
 public:
  void Granted(int64_t ttl) { smallest_ttl_ = std::min(smallest_ttl_, ttl); }
  // No lease is left.
  void Clear() { smallest_ttl_ = INT64_MAX; }

  // Of the leases granted since there was none; INT64_MAX: none was.
  int64_t smallest_ttl() const { return smallest_ttl_; }

  // Whether a heartbeat is to come.
  bool beating() const { return beating_; }
  // One begins at `now`, and comes after the time that is returned.
  int64_t Begin(int64_t now) {
    const int64_t period = Period();
    beating_ = true;
    heartbeat_due_ = now + period;
    return period;
  }
  // It has come, or there was no timeout for it.
  void End() { beating_ = false; }

  // At `now` runs what was to run at `due`. True if this process was paused; once for one pause.
  bool Notice(int64_t due, int64_t now) {
    const int64_t most = smallest_ttl_ / 2;
    if (beating_ && now > heartbeat_due_) {
      Add(now - heartbeat_due_, now);
      heartbeat_due_ = now;  // counted
    }
    if (now - due <= most && absent_ + absent_before_ <= most) return false;
    heartbeat_due_ = now + Period();
    absent_ = absent_before_ = 0;
    return true;
  }

 private:
  int64_t Period() const { return std::max<int64_t>(smallest_ttl_ / 8, 1); }

  void Add(int64_t absence, int64_t now) {
    if (absence <= Period()) return;
    const int64_t beyond = now - span_begin_ - smallest_ttl_;
    if (beyond > 0) {
      absent_before_ = beyond > smallest_ttl_ ? 0 : absent_;
      absent_ = 0;
      span_begin_ = now;
    }
    absent_ += absence;
  }

  int64_t smallest_ttl_ = INT64_MAX;
  bool beating_ = false;
  int64_t heartbeat_due_ = 0;
  // In a span of a TTL, and in the one before it.
  int64_t span_begin_ = 0;
  int64_t absent_ = 0;
  int64_t absent_before_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_PAUSE_WATCH_H_
