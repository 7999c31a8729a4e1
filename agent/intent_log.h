// What becomes of intents, as events in the log: one for each change of a key's state, and never a
// flood.
//
// The core reports once when an intent's first attempt failed, once when it is parked or becomes
// superseded, and once when the registry has it, and nothing for the attempts between. Where many
// keys change at once (a fleet's registry goes away, and comes back) the log has so many lines of
// each kind of event in a window of time; the rest is counted, reported by one line when the window
// ends, and to be seen at level debug:
//
//   retrying operation=register namespace=default service=orders instance=orders-1 upstream=…
//   left out of=retrying count=9900
//
// So the lines and the counts add up to what has happened.
//
// Thread safety: all methods from any thread; the timer outlives it.

#ifndef FAILBACK_AGENT_INTENT_LOG_H_
#define FAILBACK_AGENT_INTENT_LOG_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "registry/base/log.h"
#include "registry/failback/failback_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {

class IntentLog {
 public:
  // A window begins with the first event after the one before has ended.
  static constexpr absl::Duration kWindow = absl::Seconds(10);
  // Of each kind of event in a window.
  static constexpr int kLines = 100;

  // The timer outlives the log.
  explicit IntentLog(HashedWheelTimer* timer) : timer_(timer) {}
  // Reports what was left out.
  ~IntentLog();
  IntentLog(const IntentLog&) = delete;
  IntentLog& operator=(const IntentLog&) = delete;

  void Record(const IntentEvent& event);

 private:
  // Those that are of an intent; the core logs itself what is of its session.
  static constexpr size_t kKinds = 5;

  struct Count {
    int logged = 0;
    int64_t left_out = 0;
  };

  // Counts the event; whether it gets a line.
  bool MayLog(IntentEvent::Kind kind);
  void EndWindow();

  HashedWheelTimer* const timer_;

  Mutex mu_;
  std::array<Count, kKinds> counts_ ABSL_GUARDED_BY(mu_) = {};
  bool window_open_ ABSL_GUARDED_BY(mu_) = false;
  Timeout window_end_ ABSL_GUARDED_BY(mu_);
};

// An event's fields: operation, namespace, service, instance (or id, of a subscription), upstream,
// generation, and of a failure times, code and message.
LogFields IntentFields(const IntentEvent& event);

}  // namespace failback

#endif  // FAILBACK_AGENT_INTENT_LOG_H_
