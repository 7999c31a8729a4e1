// The snapshot of a set that an agent follows (registry/watch/lazy_snapshot.h).
//
// It refers to the instances as the agent holds them, so it costs a pointer for each however large
// they are, and its parts are encoded when a subscriber takes them. No part is larger than about
// 256 KiB, so that every client can read it whatever the size of the set: gRPC clients take 4 MiB.
//
// Thread safety: SetSnapshot is immutable; the functions are pure.

#ifndef FAILBACK_REGISTRY_WATCH_SET_SNAPSHOT_H_
#define FAILBACK_REGISTRY_WATCH_SET_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "registry/registry.h"
#include "registry/watch/lazy_snapshot.h"
#include "registry/watch/set_flags.h"

namespace failback {

class SetSnapshot final : public LazySnapshot {
 public:
  using Instance = std::shared_ptr<const ServiceInstance>;

  // A part has at most so many instances and about so many bytes, but at least one instance.
  static constexpr size_t kPartInstances = 2000;
  static constexpr size_t kPartBytes = 256 << 10;

  SetSnapshot(uint64_t epoch, uint64_t revision, SetFlags flags, std::vector<Instance> instances);

  uint64_t epoch() const override { return epoch_; }
  uint64_t revision() const override { return revision_; }
  SetFlags flags() const override { return flags_; }
  size_t instances() const override { return instances_.size(); }
  size_t parts() const override { return parts_.size(); }
  std::string EncodedPart(size_t part) const override;
  size_t PartBytes(size_t part) const override;
  std::shared_ptr<const SubscribeResponse> Part(size_t part) const override;
  void ForEach(absl::FunctionRef<void(std::string_view)> use) const override;
  size_t bytes() const override;

 private:
  struct PartOf {
    size_t begin;  // in instances_
    size_t bytes;  // of the Snapshot message
  };

  bool IsLast(size_t part) const { return part + 1 == parts_.size(); }
  size_t EndOf(size_t part) const {
    return IsLast(part) ? instances_.size() : parts_[part + 1].begin;
  }

  const uint64_t epoch_;
  const uint64_t revision_;
  const SetFlags flags_;
  const std::vector<Instance> instances_;
  std::vector<PartOf> parts_;
};

// Whether `delta`, after which a set has so many instances, is better sent as a snapshot in parts:
// a delta is one message, however long.
bool TellsAsSnapshot(const registry::v1::Delta& delta, size_t instances);

// Says to a subscriber at this position that its set is stale, and nothing else.
std::shared_ptr<const SubscribeResponse> StaleAt(uint64_t epoch, uint64_t revision);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_SET_SNAPSHOT_H_
