#include "retry/backoff.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "retry/mutex.h"

namespace failback {
namespace {

template <typename Generator>
Random Locked(Generator generator) {
  struct State {
    explicit State(Generator g) : generator(std::move(g)) {}
    Mutex mu;
    Generator generator ABSL_GUARDED_BY(mu);
  };
  auto state = std::make_shared<State>(std::move(generator));
  return [state] {
    MutexLock lock(&state->mu);
    return absl::Uniform<double>(state->generator, 0.0, 1.0);
  };
}

}  // namespace

Random EntropyRandom() { return Locked(absl::BitGen()); }

Random SeededRandom(uint64_t seed) { return Locked(std::mt19937_64(seed)); }

absl::Status ValidateBackoff(const std::string& path, const BackoffOptions& options) {
  const auto bad = [&](const char* field, const std::string& value, const char* allowed) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".", field, ": ", value, " is not ", allowed));
  };
  if (options.initial <= absl::ZeroDuration()) {
    return bad("initial", absl::FormatDuration(options.initial), "above zero");
  }
  if (!(options.multiplier >= 1.0) || std::isinf(options.multiplier)) {
    return bad("multiplier", absl::StrCat(options.multiplier), "1 or more");
  }
  if (options.max < options.initial) {
    return bad("max", absl::FormatDuration(options.max), "at least `initial`");
  }
  if (!(options.jitter >= 0.0 && options.jitter <= 1.0)) {
    return bad("jitter", absl::StrCat(options.jitter), "in 0..1");
  }
  return absl::OkStatus();
}

absl::Duration BackoffDelay(const BackoffOptions& options, int times, double random) {
  // A double carries the ceiling past any overflow to infinity, where min() catches it.
  const double initial = absl::ToDoubleSeconds(options.initial);
  const double ceiling = std::min(absl::ToDoubleSeconds(options.max),
                                  initial * std::pow(options.multiplier, std::max(times, 1) - 1));
  return absl::Seconds(ceiling * (1.0 - options.jitter + options.jitter * random));
}

absl::Duration StretchedDelay(absl::Duration asked, int refusals, double random) {
  constexpr absl::Duration kMost = absl::Minutes(1);
  return std::max(asked, std::min(kMost, asked * (1.0 + random * std::max(refusals, 0))));
}

}  // namespace failback
