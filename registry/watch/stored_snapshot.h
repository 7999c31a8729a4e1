// The snapshot of a set of stored instances (registry/watch/lazy_snapshot.h).
//
// It is a list of runs of some 32 instances each, and a run that several snapshots have is there
// once. So ten subscribers that joined at ten revisions of a large service, and stopped, hold its
// list about once, and each the few runs that have changed since the one before joined.
//
// Where a run ends is decided by the instances alone (content-defined chunking, as in LBFS,
// Muthitacharoen et al. 2001): after one whose digest has its lowest bits zero. An instance that
// comes, changes or goes changes its own run, or two; counting off every 32 would move all that
// follow.
//
// Thread safety: RunPool: all methods from any thread. StoredSnapshot is immutable.

#ifndef FAILBACK_REGISTRY_WATCH_STORED_SNAPSHOT_H_
#define FAILBACK_REGISTRY_WATCH_STORED_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "registry/model/blob.h"
#include "registry/watch/lazy_snapshot.h"
#include "registry/watch/set_flags.h"
#include "retry/mutex.h"

namespace failback {

// Runs of instances that someone has.
class RunPool {
 public:
  using Run = std::vector<Blob>;

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

class StoredSnapshot final : public LazySnapshot {
 public:
  // A part has at most so many instances and about so many bytes, but at least one instance.
  struct PartLimits {
    size_t instances;
    size_t bytes;
  };

  StoredSnapshot(uint64_t epoch, uint64_t revision, SetFlags flags,
                 const std::vector<Blob>& instances, PartLimits limits, RunPool* pool);

  uint64_t epoch() const override { return epoch_; }
  uint64_t revision() const override { return revision_; }
  SetFlags flags() const override { return flags_; }
  size_t instances() const override { return instances_; }
  size_t parts() const override { return parts_.size(); }
  std::string EncodedPart(size_t part) const override;
  size_t PartBytes(size_t part) const override;
  void ForEach(absl::FunctionRef<void(std::string_view)> use) const override;
  size_t bytes() const override;

 private:
  // A place in the list.
  struct Place {
    uint32_t run;
    uint32_t offset;
  };

  // The size of a part's Snapshot message.
  size_t SnapshotBytes(size_t part) const;
  bool IsLast(size_t part) const { return part + 1 == parts_.size(); }
  // Calls `use` with the instances of a part.
  template <typename Use>
  void ForEachOf(size_t part, Use use) const;

  const uint64_t epoch_;
  const uint64_t revision_;
  const SetFlags flags_;
  const size_t instances_;
  std::vector<std::shared_ptr<const RunPool::Run>> runs_;
  std::vector<Place> parts_;  // where each begins
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_STORED_SNAPSHOT_H_
