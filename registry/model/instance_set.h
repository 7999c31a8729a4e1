// The instances that one subscription follows, as its events leave them.
//
// Choose it wherever events are put together. It refers to instances by their canonical bytes,
// which it shares with the events that they came in, sorted by their keys, in runs of some 32 that
// are immutable. A copy of a set shares the runs, and so does a snapshot made of them: of 10,000
// instances a copy costs some 5 KB, and each change afterwards one run. An instance that an event
// repeats stays the one that the set has.
//
// Example: a follower that publishes what has changed.
//
//   InstanceSet::Changes changes;
//   if (absl::Status status = set.Apply(event, &changes); !status.ok()) {
//     set.DropPosition();  // a gap: subscribe again, without a position
//     return status;
//   }
//   for (const std::string& key : changes.removals) Forget(key);
//   for (const Blob& instance : changes.upserts) Show(instance);
//
// Thread safety: thread-compatible. Copies may be used by different threads.
//
// Invariants:
// 1. The runs are sorted by canonical key, each key is there once, and no run is empty.
// 2. What an Apply that is refused was given has changed nothing.

#ifndef FAILBACK_REGISTRY_MODEL_INSTANCE_SET_H_
#define FAILBACK_REGISTRY_MODEL_INSTANCE_SET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/event_order.h"
#include "registry/model/set_flags.h"

namespace failback {

class InstanceSet {
 public:
  // What makes one set out of another, in the order of the keys.
  struct Changes {
    std::vector<Blob> upserts;          // new, or with other bytes
    std::vector<std::string> removals;  // canonical keys that were there

    bool empty() const { return upserts.empty() && removals.empty(); }
  };

  // Takes the next event of the stream, and adds what it changes to `changes`, if that is not null.
  // ABORTED (POSITION_LOST), and nothing is changed, if it does not follow.
  absl::Status Apply(const Event& event, Changes* changes = nullptr);

  // Another stream begins: where this one was, so that its first event may be an earlier snapshot;
  // at a position at which the set was as it is; or anywhere, with a snapshot.
  void Resume() { ResumeAt(epoch(), revision()); }
  void ResumeAt(uint64_t epoch, uint64_t revision) { order_ = EventOrder(epoch, revision); }
  void DropPosition() { order_ = EventOrder(); }

  // Where the next event has to follow; zero when that has to be a snapshot.
  uint64_t epoch() const { return order_.epoch(); }
  uint64_t revision() const { return order_.revision(); }

  // Of the last event.
  SetFlags flags() const { return flags_; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Null: there is none.
  Blob Find(std::string_view key) const;
  void ForEach(absl::FunctionRef<void(const Blob&)> use) const;
  const Event::Runs& runs() const { return runs_; }

  // What makes `after` out of `before`.
  static Changes Difference(const InstanceSet& before, const InstanceSet& after);

 private:
  struct Operation;

  void Replace(const Event& snapshot);
  void Carry(const Event& delta, Changes* changes);
  // The last run that begins at or before `names`; 0 if there is none.
  size_t RunOf(const KeyNames& names) const;
  // Puts `run` in the place of the run at `index`, in pieces if it is long.
  void Put(size_t index, Event::Run run);

  EventOrder order_;
  SetFlags flags_;
  size_t size_ = 0;
  Event::Runs runs_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_INSTANCE_SET_H_
