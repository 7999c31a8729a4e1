// One health check: a probe that is run at an interval, and the state that follows from it.
//
// The tries are a PeriodicTask on the wheel, and so is each one's timeout; nothing here sleeps or
// blocks. A `ttl` check has no probe: the program reports, and the wheel notices when it does not.
//
//   HealthChecker::Options options;
//   options.interval = absl::Seconds(5);
//   auto checker = HealthChecker::Start(timer, std::move(probe), options, [&] { Look(); });
//
// Thread safety: all methods from any thread. `on_change` runs without locks, on the thread that
// brought the news; it does not run after the destructor has returned, which waits for one that
// does (and so must not be called from it).

#ifndef FAILBACK_AGENT_HEALTH_HEALTH_CHECKER_H_
#define FAILBACK_AGENT_HEALTH_HEALTH_CHECKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "agent/health/check_counter.h"
#include "agent/health/probe.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class HealthChecker {
 public:
  struct Options {
    // From the beginning of one try to that of the next. With `ttl`: how long a report holds.
    absl::Duration interval = absl::Seconds(10);
    // At most `interval`.
    absl::Duration timeout = absl::Seconds(1);
    uint32_t rise = 1;
    uint32_t fall = 3;
    // Before the first try.
    absl::Duration first_delay = absl::ZeroDuration();
  };

  struct Snapshot {
    CheckState state = CheckState::kUnknown;
    absl::Time since;
    std::string last_error;
    uint64_t passes = 0;
    uint64_t failures = 0;
  };

  // `timer` outlives the checker. A null `probe` makes a check that the program reports on itself.
  static std::unique_ptr<HealthChecker> Start(HashedWheelTimer* timer, std::unique_ptr<Probe> probe,
                                              const Options& options,
                                              std::function<void()> on_change);
  ~HealthChecker();
  HealthChecker(const HealthChecker&) = delete;
  HealthChecker& operator=(const HealthChecker&) = delete;

  CheckState state() const;
  Snapshot snapshot() const;

  // What the program itself says: OK, or why it is not well. For a checker without a probe.
  void Report(const absl::Status& status);

 private:
  class State;
  explicit HealthChecker(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_HEALTH_CHECKER_H_
