// One step of a subscription: the whole set, what changed in it, or a change of its flags.
//
// An event refers to instances by their canonical bytes (registry/model/canonical.h), which it
// shares with the store, the sets and the other events that have them. It costs a pointer for each
// instance, and all subscribers of a set share one event. Messages are made on demand:
// EncodedPart() encodes the SubscribeResponse of one part. A snapshot of a large set has several
// parts, so that a subscriber that stops in the middle holds a list and one encoded part; a part is
// encoded from the bytes as they are, so making it again costs little more than copying them. A
// delta is one part.
//
// Example: what a set does with an event.
//
//   if (event.is_snapshot()) instances.clear();
//   for (const std::string& key : event.removals()) instances.erase(key);
//   event.ForEachInstance([&](const Blob& instance) { instances[KeyOf(instance)] = instance; });
//
// Thread safety: immutable; all methods from any thread. The functions are pure.
//
// Invariants:
// 1. parts() is at least 1. The parts have the same epoch, revision and flags, and all but the last
//    say `more`.
// 2. A part is the same every time it is encoded, and is encoded as protobuf's serializer does it.

#ifndef FAILBACK_REGISTRY_MODEL_EVENT_H_
#define FAILBACK_REGISTRY_MODEL_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/model/blob.h"
#include "registry/model/canonical.h"
#include "registry/model/set_flags.h"

namespace failback {

class Event;
using EventPtr = std::shared_ptr<const Event>;

// A part has at most so many instances and about so many bytes, but at least one instance. Every
// client can read parts of the default size: gRPC clients take 4 MiB.
struct PartLimits {
  size_t instances = 2000;
  size_t bytes = 256 << 10;
};

class Event {
 public:
  // Instances in a row, and rows of them that make up a list.
  using Run = std::vector<Blob>;
  using Runs = std::vector<std::shared_ptr<const Run>>;

  enum class Kind {
    kSnapshot,  // the whole set, in place of all that came before
    kDelta,     // what changed since base_revision()
    kFlags,     // the set is as it was; its flags have changed
  };

  static EventPtr Snapshot(uint64_t epoch, uint64_t revision, SetFlags flags,
                           std::vector<Blob> instances, PartLimits limits = PartLimits());
  // The same of a list in runs, which it shares with other snapshots (registry/watch/run_pool.h).
  static EventPtr SharedSnapshot(uint64_t epoch, uint64_t revision, SetFlags flags, Runs runs,
                                 PartLimits limits);

  // `upserts` are new or changed; `removals` are canonical keys.
  static EventPtr Delta(uint64_t epoch, uint64_t base_revision, uint64_t revision, SetFlags flags,
                        std::vector<Blob> upserts, std::vector<std::string> removals);

  static EventPtr Flags(uint64_t epoch, uint64_t revision, SetFlags flags);

  Kind kind() const { return kind_; }
  bool is_snapshot() const { return kind_ == Kind::kSnapshot; }
  bool is_delta() const { return kind_ == Kind::kDelta; }

  // Where a subscriber is after it.
  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }
  // Of a delta: where a subscriber has to be before it.
  uint64_t base_revision() const { return base_revision_; }
  SetFlags flags() const { return flags_; }

  // A snapshot's instances, or a delta's upserts.
  size_t instances() const { return instances_; }
  void ForEachInstance(absl::FunctionRef<void(const Blob&)> use) const;
  const Runs& runs() const { return runs_; }  // they are in
  const std::vector<std::string>& removals() const { return removals_; }

  // The SubscribeResponse of a part below parts(), serialized, and the size of that.
  size_t parts() const { return parts_.size(); }
  std::string EncodedPart(size_t part) const;
  size_t PartBytes(size_t part) const;

  // About how many bytes it takes beside its instances, and the lists of them that it shares.
  size_t bytes() const;

 private:
  // Where a part begins, and the size of its Snapshot or Delta message.
  struct Part {
    uint32_t run;
    uint32_t offset;
    size_t bytes;
  };

  Event(Kind kind, uint64_t epoch, uint64_t base_revision, uint64_t revision, SetFlags flags);

  // Divides the instances of runs_ into parts.
  void Divide(PartLimits limits);
  bool IsLast(size_t part) const { return part + 1 == parts_.size(); }
  // Calls `use` with the instances of a part.
  template <typename Use>
  void ForEachOf(size_t part, Use use) const;

  const Kind kind_;
  const SetFlags flags_;
  const uint64_t epoch_;
  const uint64_t base_revision_;
  const uint64_t revision_;
  size_t instances_ = 0;
  bool shares_runs_ = false;
  Runs runs_;
  std::vector<Part> parts_;
  std::vector<std::string> removals_;
};

// The names in the key of an instance, where they are in it; and its canonical key. Both read the
// first field only.
KeyNames KeyNamesOf(const Blob& instance);
std::string KeyOf(const Blob& instance);

// An instance as a message.
registry::v1::ServiceInstance ParseInstance(const Blob& instance);

// How long a delta may be: it is one message, and with a subscriber that stops at it stays whole,
// where a snapshot has parts, and shares them.
struct DeltaLimits {
  size_t bytes = 256 << 10;  // provided that a snapshot is not many times as long
  // In any case: a gRPC client takes no message above 4 MiB by default.
  size_t most_bytes = 1 << 20;
};

// The most bytes of a delta of so many changes, after which a set has so many instances: one that
// is longer is better sent as a snapshot.
size_t MostDeltaBytes(size_t changes, size_t instances, const DeltaLimits& limits);

// Whether `delta`, after which a set has so many instances, is longer than that by default.
bool IsBetterAsSnapshot(const Event& delta, size_t instances);

// Says to a subscriber at this position that its set is stale, and nothing else.
EventPtr StaleAt(uint64_t epoch, uint64_t revision);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_EVENT_H_
