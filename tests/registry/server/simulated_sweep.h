// A server's sweep of stopped streams on simulated time; the streams themselves are real.

#ifndef FAILBACK_TESTS_REGISTRY_SERVER_SIMULATED_SWEEP_H_
#define FAILBACK_TESTS_REGISTRY_SERVER_SIMULATED_SWEEP_H_

#include <memory>

#include "absl/time/time.h"
#include "registry/server/registry_server.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/util/timers.h"

namespace failback {

class SimulatedSweep {
 public:
  static constexpr absl::Duration kStalled = absl::Seconds(30);
  static constexpr absl::Duration kSilent = absl::Minutes(10);

  SimulatedSweep() { timer_ = NewTimer(&clock_); }

  // For a server that ends before this.
  RegistryServer::Options options() const {
    RegistryServer::Options options;
    options.timer = timer_.get();
    options.stalled_stream_timeout = kStalled;
    options.silent_stream_timeout = kSilent;
    return options;
  }

  void Advance(absl::Duration time) { clock_.Advance(time); }

 private:
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_SERVER_SIMULATED_SWEEP_H_
