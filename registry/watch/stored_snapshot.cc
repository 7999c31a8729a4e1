#include "registry/watch/stored_snapshot.h"

#include <algorithm>
#include <utility>

#include "registry/model/canonical.h"
#include "registry/model/wire_writer.h"

namespace failback {
namespace {

using registry::v1::Snapshot;
using registry::v1::SubscribeResponse;

// One digest in so many ends a run. A run that meets none ends at kLongestRun.
constexpr uint64_t kRunEnds = 32;
constexpr size_t kLongestRun = 256;

}  // namespace

std::shared_ptr<const RunPool::Run> RunPool::Intern(uint64_t digest, const Blob* begin,
                                                    const Blob* end) {
  std::shared_ptr<const Run> other;  // let go without the lock
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

StoredSnapshot::StoredSnapshot(uint64_t epoch, uint64_t revision, SetFlags flags,
                               const std::vector<Blob>& instances, PartLimits limits, RunPool* pool)
    : epoch_(epoch), revision_(revision), flags_(flags), instances_(instances.size()) {
  runs_.reserve(instances.size() / kRunEnds * 5 / 4);
  parts_.push_back({0, 0});
  size_t part_instances = 0;
  size_t part_bytes = 0;
  size_t begin = 0;  // of the run
  uint64_t run_digest = 0;
  for (size_t i = 0; i < instances.size(); ++i) {
    const Blob& instance = instances[i];
    if (part_instances > 0 &&
        (part_instances >= limits.instances || part_bytes + instance.size() > limits.bytes)) {
      parts_.push_back({static_cast<uint32_t>(runs_.size()), static_cast<uint32_t>(i - begin)});
      part_instances = part_bytes = 0;
    }
    ++part_instances;
    part_bytes += instance.size();
    const uint64_t digest = Digest64(instance.data(), instance.size());
    run_digest = (run_digest ^ digest) * 0x9e3779b97f4a7c15u;
    if (digest % kRunEnds == 0 || i + 1 - begin >= kLongestRun || i + 1 == instances.size()) {
      runs_.push_back(pool->Intern(run_digest, &instances[begin], &instances[i] + 1));
      begin = i + 1;
      run_digest = 0;
    }
  }
  runs_.shrink_to_fit();
  parts_.shrink_to_fit();
}

template <typename Use>
void StoredSnapshot::ForEachOf(size_t part, Use use) const {
  const Place begin = parts_[part];
  const Place end = IsLast(part) ? Place{static_cast<uint32_t>(runs_.size()), 0} : parts_[part + 1];
  for (uint32_t run = begin.run; run < runs_.size() && run <= end.run; ++run) {
    const size_t first = run == begin.run ? begin.offset : 0;
    const size_t last = run == end.run ? end.offset : runs_[run]->size();
    for (size_t i = first; i < last; ++i) use((*runs_[run])[i].view());
  }
}

size_t StoredSnapshot::SnapshotBytes(size_t part) const {
  size_t size = IsLast(part) ? 0 : wire::NumberSize(1);
  ForEachOf(part, [&](std::string_view instance) { size += wire::BytesSize(instance.size()); });
  return size;
}

size_t StoredSnapshot::PartBytes(size_t part) const {
  return (epoch_ == 0 ? 0 : wire::NumberSize(epoch_)) +
         (revision_ == 0 ? 0 : wire::NumberSize(revision_)) + wire::BytesSize(SnapshotBytes(part)) +
         (flags_.stale ? wire::NumberSize(1) : 0) + (flags_.held ? wire::NumberSize(1) : 0);
}

std::string StoredSnapshot::EncodedPart(size_t part) const {
  std::string out;
  out.reserve(PartBytes(part));
  if (epoch_ != 0) wire::AppendNumber(SubscribeResponse::kEpochFieldNumber, epoch_, &out);
  if (revision_ != 0) wire::AppendNumber(SubscribeResponse::kRevisionFieldNumber, revision_, &out);
  wire::AppendHead(SubscribeResponse::kSnapshotFieldNumber, SnapshotBytes(part), &out);
  ForEachOf(part, [&](std::string_view instance) {
    wire::AppendBytes(Snapshot::kInstancesFieldNumber, instance, &out);
  });
  if (!IsLast(part)) wire::AppendNumber(Snapshot::kMoreFieldNumber, 1, &out);
  if (flags_.stale) wire::AppendNumber(SubscribeResponse::kStaleFieldNumber, 1, &out);
  if (flags_.held) wire::AppendNumber(SubscribeResponse::kHeldFieldNumber, 1, &out);
  return out;
}

void StoredSnapshot::ForEach(absl::FunctionRef<void(std::string_view)> use) const {
  for (const auto& run : runs_) {
    for (const Blob& instance : *run) use(instance.view());
  }
}

size_t StoredSnapshot::bytes() const {
  return sizeof(*this) + runs_.capacity() * sizeof(runs_[0]) + parts_.capacity() * sizeof(Place);
}

}  // namespace failback
