// What happens when a hundred thousand agents lose their registry and it comes back?
//
// A simulation: the agents' retries are the project's own (RetryTask and BackoffDelay on a
// HashedWheelTimer, all on a SimulatedClock), the registry is a queue that serves so many calls a
// second. Nothing is random but the seed.
//
// Each agent needs two calls, one after the other: it opens its session, then registers. While the
// registry is down a call fails at once, as a refused connection does. When it is back a call waits
// in its queue; one more than the queue holds is refused, with a delay to wait, at a tenth of the
// work of a call. A call that waits longer than its deadline is given up by its agent, and served
// all the same: that is work for nothing.
//
//   StormResult result = Simulate(world, FailbackStrategy(), /*seed=*/1);
//
// Thread safety: functions of their arguments.

#ifndef FAILBACK_TESTS_BENCH_STORM_SIMULATION_H_
#define FAILBACK_TESTS_BENCH_STORM_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "retry/backoff.h"
#include "retry/retry_task.h"

namespace failback {

struct World {
  int64_t agents = 100000;
  // Calls that the registry serves in a second.
  double capacity = 20000;
  // Calls that it lets wait; beyond, it refuses. 0: all of them.
  int64_t queue = 10000;
  // What a refused client is asked to wait.
  absl::Duration overload_delay = absl::Seconds(1);
  absl::Duration call_deadline = absl::Seconds(5);
  absl::Duration outage = absl::Seconds(30);
  // Within which all agents find out that the registry has gone.
  absl::Duration discovery = absl::Milliseconds(100);
  // The simulation gives up so long after the registry's return.
  absl::Duration horizon = absl::Seconds(120);
};

// How agents try again.
struct Strategy {
  std::string name;
  // Opening the session. Unset: as `retry`.
  const BackoffOptions* reconnect = nullptr;
  RetryPolicy retry;
  // Whether the delay that a refusal asks for takes the place of the own one, stretched as
  // StretchedDelay says.
  bool honours_server = false;
  // That delay is kept as it is.
  bool exactly = false;
};

struct StormResult {
  // While the registry is unavailable.
  double attempts_per_agent_and_second = 0;
  // Calls begun in the busiest second after the return, over the capacity.
  double peak_load = 0;
  // Seconds from the return until that share of agents is registered; the horizon if never.
  double half_s = 0;
  double p99_s = 0;
  double all_s = 0;
  int64_t refused = 0;
  int64_t given_up = 0;
  // Calls begun per kBucket after the return.
  std::vector<int64_t> arrivals;
  // Agents registered at the end of each bucket.
  std::vector<int64_t> registered;
};

inline constexpr absl::Duration kBucket = absl::Milliseconds(100);

// Dubbo's rule: every five seconds.
Strategy FixedPeriodStrategy();
// Doubled from 500 ms to 30 s.
Strategy ExponentialStrategy();
// The same with full jitter.
Strategy ExponentialJitterStrategy();
// The defaults of this project, as FailbackRegistry::Options has them.
Strategy FailbackStrategy();

// The same, but the delay that is asked for is kept exactly: why it is stretched.
Strategy FailbackExactStrategy();

StormResult Simulate(const World& world, const Strategy& strategy, uint64_t seed);

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_STORM_SIMULATION_H_
