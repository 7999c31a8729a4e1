#include "registry/server/stream_sweep.h"

#include <algorithm>
#include <cstddef>

#include "absl/hash/hash.h"

namespace failback {
namespace {

constexpr int kSweeps = 4;
constexpr int kSweepsOfAge = 10;

}  // namespace

SweepPlan SweepPlan::Of(absl::Duration stalled, absl::Duration silent, absl::Duration oldest) {
  SweepPlan plan;
  plan.period = std::min({stalled / kSweeps, silent / kSweeps, oldest / kSweepsOfAge});
  const auto sweeps = [period = plan.period](absl::Duration timeout) {
    return static_cast<int>(
        std::clamp<int64_t>(absl::Ceil(timeout, period) / period, kSweeps, INT32_MAX));
  };
  plan.stalled = sweeps(stalled);
  plan.silent = sweeps(silent);
  plan.oldest = sweeps(oldest);
  return plan;
}

int Jittered(int sweeps, const void* stream) {
  return sweeps - static_cast<int>(absl::HashOf(stream) % (static_cast<size_t>(sweeps) / 5 + 1));
}

absl::Duration OldestStream(absl::Duration connection_age) { return connection_age / 2.1; }

}  // namespace failback
