#include "registry/watch/run_pool.h"

#include <algorithm>
#include <utility>

#include "registry/model/canonical.h"

namespace failback {
namespace {

// One digest in so many ends a run. A run that meets none ends at kLongestRun.
constexpr uint64_t kRunEnds = 32;
constexpr size_t kLongestRun = 256;

}  // namespace

RunPool::Runs RunPool::Split(const std::vector<Blob>& instances) {
  Runs runs;
  runs.reserve(instances.size() / kRunEnds * 5 / 4);
  size_t begin = 0;  // of the run
  uint64_t run_digest = 0;
  for (size_t i = 0; i < instances.size(); ++i) {
    const uint64_t digest = Digest64(instances[i].data(), instances[i].size());
    run_digest = (run_digest ^ digest) * 0x9e3779b97f4a7c15u;
    if (digest % kRunEnds == 0 || i + 1 - begin >= kLongestRun || i + 1 == instances.size()) {
      runs.push_back(Intern(run_digest, &instances[begin], &instances[i] + 1));
      begin = i + 1;
      run_digest = 0;
    }
  }
  runs.shrink_to_fit();
  return runs;
}

std::shared_ptr<const RunPool::Run> RunPool::Intern(uint64_t digest, const Blob* begin,
                                                    const Blob* end) {
  std::shared_ptr<const Run> other;  // destroyed without the lock
  MutexLock lock(&mu_);
  auto& known = runs_[digest];
  std::shared_ptr<const Run> run = known.lock();
  if (run != nullptr) {
    if (std::equal(run->begin(), run->end(), begin, end)) return run;
    other = std::move(run);
  }
  run = std::make_shared<const Run>(begin, end);
  known = run;
  if (runs_.size() >= sweep_at_) Sweep();
  return run;
}

// Forgets runs without a holder. As often as their number doubles: constant time each.
void RunPool::Sweep() {
  absl::erase_if(runs_, [](const auto& entry) { return entry.second.expired(); });
  if (runs_.size() < runs_.capacity() / 4) runs_.rehash(0);
  sweep_at_ = std::max<size_t>(64, 2 * runs_.size());
}

size_t RunPool::size() const {
  MutexLock lock(&mu_);
  return runs_.size();
}

}  // namespace failback
