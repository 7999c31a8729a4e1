#include "tests/bench/storm/simulation.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "registry/failback/failback_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(1);
// Of the work of a call.
constexpr double kRefusalCost = 0.1;

class Storm {
 public:
  Storm(const World& world, const Strategy& strategy, uint64_t seed)
      : world_(world), strategy_(strategy), random_(SeededRandom(seed)) {
    timer_ = NewTimer(&clock_, kTick);
  }

  StormResult Run() {
    agents_.resize(world_.agents);
    for (Agent& agent : agents_) {
      agent.retry = NewTask();
      After(world_.discovery * random_(), [this, &agent] { Call(&agent); });
    }
    clock_.Advance(world_.outage);
    result_.attempts_per_agent_and_second = static_cast<double>(attempts_) /
                                            static_cast<double>(world_.agents) /
                                            absl::ToDoubleSeconds(world_.outage);
    up_ = true;
    const int64_t buckets = world_.horizon / kBucket;
    while (static_cast<int64_t>(result_.arrivals.size()) < buckets && registered_ < world_.agents) {
      result_.arrivals.push_back(0);
      clock_.Advance(kBucket);
      result_.registered.push_back(registered_);
    }
    const double horizon = absl::ToDoubleSeconds(world_.horizon);
    result_.half_s = WhenRegistered(0.5).value_or(horizon);
    result_.p99_s = WhenRegistered(0.99).value_or(horizon);
    result_.all_s = WhenRegistered(1).value_or(horizon);
    result_.peak_load = PeakLoad();
    timer_->Stop().IgnoreError();
    return std::move(result_);
  }

 private:
  struct Agent {
    bool open = false;
    int failures = 0;
    int refusals = 0;  // in a row
    std::unique_ptr<RetryTask> retry;
  };
  struct Waiting {
    Agent* agent;
    bool given_up;
  };

  std::unique_ptr<RetryTask> NewTask() {
    return std::make_unique<RetryTask>(timer_.get(), &strategy_.retry, &random_);
  }

  void After(absl::Duration delay, TimerTask task) {
    timer_->NewTimeout(std::move(task), delay).IgnoreError();
  }

  void Call(Agent* agent) {
    if (!up_) {
      ++attempts_;
      return Failed(agent, std::nullopt);
    }
    ++result_.arrivals.back();
    const auto waiting = static_cast<int64_t>(queue_.size());
    if (world_.queue > 0 && waiting >= world_.queue) {
      ++result_.refused;
      budget_ -= kRefusalCost;
      return Failed(agent, world_.overload_delay);
    }
    // First come, first served: how long it will wait is known now.
    const double wait = static_cast<double>(waiting) / world_.capacity;
    const bool given_up = wait > absl::ToDoubleSeconds(world_.call_deadline);
    queue_.push_back({agent, given_up});
    if (given_up) {
      ++result_.given_up;
      After(world_.call_deadline, [this, agent] { Failed(agent, std::nullopt); });
    }
    if (!serving_) {
      serving_ = true;
      After(kTick, [this] { Serve(); });
    }
  }

  // One tick's work.
  void Serve() {
    const double per_tick = world_.capacity * absl::ToDoubleSeconds(kTick);
    budget_ = std::min(budget_ + per_tick, std::max(per_tick, 1.0));
    while (budget_ >= 1 && !queue_.empty()) {
      const Waiting next = queue_.front();
      queue_.pop_front();
      budget_ -= 1;
      if (!next.given_up) Succeeded(next.agent);
    }
    serving_ = !queue_.empty();
    if (serving_) After(kTick, [this] { Serve(); });
  }

  void Succeeded(Agent* agent) {
    agent->failures = 0;
    agent->refusals = 0;
    agent->retry = NewTask();
    if (agent->open) {
      ++registered_;
      return;
    }
    agent->open = true;
    After(kTick, [this, agent] { Call(agent); });
  }

  void Failed(Agent* agent, std::optional<absl::Duration> server_delay) {
    if (!strategy_.honours_server) server_delay.reset();
    if (server_delay.has_value() && strategy_.exactly) {
      After(*server_delay, [this, agent] { Call(agent); });
      return;
    }
    if (!agent->open && strategy_.reconnect != nullptr) {
      // As UpstreamMachine does.
      ++agent->failures;
      const double random = random_();
      After(server_delay.has_value() ? StretchedDelay(*server_delay, agent->refusals++, random)
                                     : BackoffDelay(*strategy_.reconnect, agent->failures, random),
            [this, agent] { Call(agent); });
      return;
    }
    agent->retry->Failed(server_delay, [this, agent] {
      if (agent->retry->Begin()) Call(agent);
    });
  }

  // Seconds after the return.
  std::optional<double> WhenRegistered(double share) const {
    const double wanted = share * static_cast<double>(world_.agents);
    for (size_t i = 0; i < result_.registered.size(); ++i) {
      if (static_cast<double>(result_.registered[i]) >= wanted) {
        return static_cast<double>(i + 1) * absl::ToDoubleSeconds(kBucket);
      }
    }
    return std::nullopt;
  }

  double PeakLoad() const {
    const auto second = static_cast<size_t>(absl::Seconds(1) / kBucket);
    int64_t sum = 0;
    int64_t peak = 0;
    for (size_t i = 0; i < result_.arrivals.size(); ++i) {
      sum += result_.arrivals[i];
      if (i >= second) sum -= result_.arrivals[i - second];
      peak = std::max(peak, sum);
    }
    return static_cast<double>(peak) / world_.capacity;
  }

  const World world_;
  const Strategy strategy_;
  const Random random_;
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::vector<Agent> agents_;
  std::deque<Waiting> queue_;
  StormResult result_;
  bool up_ = false;
  bool serving_ = false;
  double budget_ = 0;
  int64_t attempts_ = 0;
  int64_t registered_ = 0;
};

RetryPolicy Exponential(double jitter) {
  RetryPolicy policy;
  policy.backoff = {absl::Milliseconds(500), 2.0, absl::Seconds(30), jitter};
  return policy;
}

}  // namespace

Strategy FixedPeriodStrategy() {
  Strategy strategy;
  strategy.name = "fixed-period";
  strategy.retry.retry_period = absl::Seconds(5);
  return strategy;
}

Strategy ExponentialStrategy() { return {"exponential", nullptr, Exponential(0)}; }

Strategy ExponentialJitterStrategy() { return {"exponential-jitter", nullptr, Exponential(1)}; }

Strategy FailbackStrategy() {
  static const auto* const kDefaults = new FailbackRegistry::Options();
  return {"failback", &kDefaults->reconnect, kDefaults->retry, /*honours_server=*/true};
}

Strategy FailbackExactStrategy() {
  Strategy strategy = FailbackStrategy();
  strategy.name = "failback-exact";
  strategy.exactly = true;
  return strategy;
}

StormResult Simulate(const World& world, const Strategy& strategy, uint64_t seed) {
  return Storm(world, strategy, seed).Run();
}

}  // namespace failback
