// Lists of instances that snapshots share.
//
// A snapshot's list is made of runs of some 32 instances each, and a run that several snapshots
// have is in memory once. So ten subscribers that joined at ten revisions of a large service, and
// stopped, hold its list about once, and each the few runs that have changed since the one before
// joined.
//
// Where a run ends is decided by the instances alone (content-defined chunking, as in LBFS,
// Muthitacharoen et al. 2001): after one whose digest has its lowest bits zero. An instance that
// comes, changes or goes changes its own run, or two; counting off every 32 would move all that
// follow.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_WATCH_RUN_POOL_H_
#define FAILBACK_REGISTRY_WATCH_RUN_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "retry/mutex.h"

namespace failback {

class RunPool {
 public:
  using Run = Event::Run;
  using Runs = Event::Runs;

  // The runs of these instances.
  Runs Split(const std::vector<Blob>& instances);

  // The run of these instances, whose digest is `digest`.
  std::shared_ptr<const Run> Intern(uint64_t digest, const Blob* begin, const Blob* end);

  // Runs that are remembered. Some without a holder are among them; for tests.
  size_t size() const;

 private:
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::weak_ptr<const Run>> runs_ ABSL_GUARDED_BY(mu_);  // by digest
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_RUN_POOL_H_
