// What one subscriber has not been told yet, merged to the least that brings it up to date.
//
// A subscriber that reads slowly must neither slow the others nor make the server remember every
// change for it. While a message is being written to it, the ones that follow wait here: deltas are
// merged per key to the newest, a new snapshot takes the place of all that waits, and what turned
// back to what the subscriber has is not told at all. A subscriber that keeps up gets the messages
// as they are, as the same shared objects.
//
//   Conflator conflator(request.epoch(), request.revision());
//   on event:       status = conflator.Add(event);  write if idle
//   write is done:  if (auto next = conflator.Take()) write it
//
// To know that a change has turned back, the conflator remembers 64-bit digests of the keys and
// contents that the subscriber has: some 20 bytes an instance, up to kMaxContents instances. Of a
// larger set, and of what a subscriber had before it resumed, the contents are not known: such a
// key that changed forth and back while the subscriber was behind may be told once without need.
//
// Thread safety: none of its own.
//
// Invariants (`Add` takes a stream in the order of registry/event_order.h):
//  1. What Take returns is a stream in that order too, and ends in the same state.
//  2. No two messages in a row leave the same state, but for the first after resuming, and as
//  above.
//  3. Beside shared messages (one that is being written, a snapshot under way, one to follow it) it
//     holds at most kMaxBytes.

#ifndef FAILBACK_REGISTRY_CONFLATOR_H_
#define FAILBACK_REGISTRY_CONFLATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "registry/event_order.h"
#include "registry/registry.h"

namespace failback {

class Conflator {
 public:
  using Event = std::shared_ptr<const SubscribeResponse>;

  // What one message does to one key: the digests of the key and of its content, which is 0 when
  // the key goes.
  struct Change {
    uint64_t key;
    uint64_t content;
  };
  using Changes = std::shared_ptr<const std::vector<Change>>;

  // The changes of `message`: its instances, or upserts and then removals, in their order. Those of
  // a message that many subscribers get are worth computing once.
  static Changes ChangesOf(const SubscribeResponse& message);

  // What one subscriber may hold of its own. Beyond it its stream ends: a snapshot is shorter then.
  static constexpr size_t kMaxBytes = 1 << 20;
  // Instances whose contents are remembered.
  static constexpr size_t kMaxContents = 8192;

  // A subscriber that resumes after (`epoch`, `revision`); 0 and 0 for one that starts anew.
  Conflator(uint64_t epoch, uint64_t revision);

  // Takes the next message of the source. ABORTED when it does not follow from the one before, or
  // when kMaxBytes are passed: end the stream, the subscriber starts anew. `changes` are those of
  // `event`, computed if null.
  absl::Status Add(Event event, Changes changes = nullptr);

  // The next message to write, or null when the subscriber is up to date (or a snapshot is
  // not here in full).
  Event Take();

  // Operations and parts that wait; for tests and statistics.
  size_t pending() const;

  // About how much memory is held for this subscriber alone.
  size_t bytes() const;

 private:
  // What the subscriber has, or will have.
  struct State {
    bool known = false;     // it has a position
    bool complete = false;  // what is not in `contents` it does not have
    bool stale = false;
    uint64_t epoch = 0;
    uint64_t revision = 0;
    absl::flat_hash_map<uint64_t, uint64_t> contents;

    void Apply(const std::vector<Change>& changes);
    void MoveTo(const SubscribeResponse& message);
    // The content of `key`, 0 when it is absent, or nullopt when that is not known.
    std::optional<uint64_t> ContentOf(uint64_t key) const;
    size_t bytes() const;
  };

  // A snapshot of which nothing has been taken. It waits until it is whole, as only then it shows
  // whether it is news.
  struct Snapshot {
    std::vector<Event> parts;
    bool whole = false;
    State after;
  };

  // The newest of what happened to one key.
  struct Operation {
    uint64_t content = 0;
    std::string bytes;  // a ServiceInstance, or, when content is 0, an InstanceKey; serialized
  };

  // What follows the snapshots: one message as it came, or several merged.
  struct Rest {
    Event single;  // null once merged
    Changes changes;
    uint64_t revision = 0;
    bool stale = false;
    std::map<uint64_t, Operation> operations;
    size_t operation_bytes = 0;  // about what they take
  };

  // What the operations of rest_ are relative to.
  const State& Base() const { return next_ != nullptr ? next_->after : written_; }
  absl::Status AddToRest(Event event, Changes changes);
  // Merges `message` into rest_.
  void Merge(const SubscribeResponse& message, const std::vector<Change>& changes);
  // Turns the single message of rest_ into operations.
  void Unfold();
  // Takes rest_, or null when it changes nothing.
  Event TakeRest();
  Event Told(Event event);

  EventOrder order_;
  bool told_ = false;  // Take has returned something
  // After all that has been taken, and `parts_`.
  State written_;
  // What is left of the snapshot that is being taken, the next part last. (An empty deque would
  // take half a kilobyte for each subscriber.)
  std::vector<Event> parts_;
  std::unique_ptr<Snapshot> next_;
  std::unique_ptr<Rest> rest_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CONFLATOR_H_
