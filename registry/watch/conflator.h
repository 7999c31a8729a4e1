// What one subscriber has not been sent yet, merged to the least that brings it up to date.
//
// A subscriber that reads slowly must neither slow the others nor make the server remember every
// change for it. While a message is being written to it, the ones that follow wait here: deltas are
// merged per key to the newest, a new snapshot takes the place of all that waits, and what turned
// back to what the subscriber has is not sent at all. A subscriber that keeps up gets the messages
// as they are, as the same shared objects.
//
//   Conflator conflator(request.epoch(), request.revision());
//   on event:       status = conflator.Add(event);  write if idle
//   write is done:  if (auto next = conflator.Take()) write it; else the subscriber is idle
//
// A snapshot may come lazy (registry/watch/lazy_snapshot.h); then its parts are taken as numbers,
// to be encoded when they are written.
//
// To know that a change has turned back, the conflator remembers 64-bit digests of the keys and
// contents that the subscriber has, which no client can make collide (registry/watch/keyed_hash.h):
// some 20 bytes an instance, up to kMaxContents instances. Of a larger set, and of what a
// subscriber had before it resumed, the contents are not known: such a key that changed forth and
// back while the subscriber was behind may be sent once without need.
//
// Thread safety: none of its own.
//
// Invariants (`Add` takes a stream in the order of registry/watch/event_order.h):
//  1. What Take returns is a stream in that order too, and ends in the same state.
//  2. No two messages in a row leave the same state, but for the first after resuming, and as
//  above.
//  3. It holds at most kMaxBytes: with what has been taken last, until the next Take, as that is
//     being written. But for snapshots that did not come lazy, and messages below kSharedBytes
//     that wait as they came, which are shared.

#ifndef FAILBACK_REGISTRY_WATCH_CONFLATOR_H_
#define FAILBACK_REGISTRY_WATCH_CONFLATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "registry/model/blob.h"
#include "registry/registry.h"
#include "registry/watch/event_order.h"
#include "registry/watch/lazy_snapshot.h"
#include "registry/watch/set_flags.h"

namespace failback {

class Conflator {
 public:
  using Event = std::shared_ptr<const SubscribeResponse>;

  using Snapshot = std::shared_ptr<const LazySnapshot>;

  // A message to be written: an event, or a part of a snapshot. Neither: there is none.
  struct Message {
    Event event;
    Snapshot snapshot;
    size_t part = 0;

    explicit operator bool() const { return event != nullptr || snapshot != nullptr; }
  };

  // What one message does to one key: the digests of the key and of its content, which is 0 when
  // the key goes.
  struct Change {
    uint64_t key;
    uint64_t content;
  };
  struct ChangeList {
    std::vector<Change> changes;
    size_t bytes = 0;  // of the message, serialized
  };
  using Changes = std::shared_ptr<const ChangeList>;

  // The changes of `message`: its instances, or upserts and then removals, in their order. Those of
  // a message that many subscribers get are worth computing once.
  static Changes ChangesOf(const SubscribeResponse& message);
  // Those of a snapshot, in its order; none when it is so large that they are not remembered.
  static Changes ChangesOf(const LazySnapshot& snapshot);

  // What one subscriber may hold of its own. Beyond it its stream ends: a snapshot is shorter then.
  // A stream takes some 20 KiB besides.
  static constexpr size_t kMaxBytes = 960 << 10;
  // A larger message that has to wait is taken apart at once: others may have let go of it.
  static constexpr size_t kSharedBytes = 16 << 10;
  // Instances whose contents are remembered.
  static constexpr size_t kMaxContents = 8192;

  // A subscriber that resumes after (`epoch`, `revision`); 0 and 0 for one that starts over.
  Conflator(uint64_t epoch, uint64_t revision);

  // Takes the next message of the source. ABORTED when it does not follow from the one before, or
  // when kMaxBytes are passed: end the stream, the subscriber starts over. `changes` are those of
  // `event`, computed if null.
  absl::Status Add(Event event, Changes changes = nullptr);
  absl::Status Add(Snapshot snapshot, Changes changes = nullptr);

  // The next message to write, or none when the subscriber is up to date (or a snapshot is
  // not here in full). What was taken before has been written.
  Message Take();

  // Operations and parts that wait; for tests and statistics.
  size_t pending() const;

  // About how much memory is held for this subscriber alone, when it is not shared by chance.
  size_t bytes() const;

 private:
  // What the subscriber has, or will have.
  struct State {
    bool known = false;     // it has a position
    bool complete = false;  // what is not in `contents` it does not have
    SetFlags flags;
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
  struct NextSnapshot {
    std::vector<Event> parts;
    Snapshot lazy;  // then there are no parts
    bool whole = false;
    State after;
  };

  // The newest of what happened to one key.
  struct Operation {
    uint64_t content = 0;
    Blob bytes;  // a ServiceInstance, or, when content is 0, an InstanceKey; serialized
  };

  // What follows the snapshots: one message as it came, or several merged.
  struct Rest {
    Event single;  // null once merged
    Changes changes;
    uint64_t revision = 0;
    SetFlags flags;
    absl::flat_hash_map<uint64_t, Operation> operations;
    size_t operation_bytes = 0;  // what their bytes take
  };

  // What the operations of rest_ are relative to.
  const State& Base() const { return next_ != nullptr ? next_->after : written_; }
  // Whether a snapshot may follow what was sent. A source that has left an epoch and come back to
  // it is in order by itself, but what it said between may never have been sent. The first one may
  // be of an earlier revision than the subscriber resumes from, which then counts for nothing.
  absl::Status CheckForward(const SubscribeResponse& snapshot);
  // A new snapshot begins: it takes the place of all that waits.
  void BeginSnapshot();
  absl::Status AddToRest(Event event, Changes changes);
  // Merges `message` into rest_.
  void Merge(const SubscribeResponse& message, const std::vector<Change>& changes);
  // Turns the single message of rest_ into operations.
  void Unfold();
  // Makes next_, which is whole, the snapshot that is being taken, unless it is no news.
  void StartNext();
  // Takes rest_, or null when it changes nothing.
  Event TakeRest();
  Event TakeMerged();
  bool in_snapshot() const { return !parts_.empty() || lazy_ != nullptr; }

  EventOrder order_;
  bool told_ = false;      // Take has returned something
  bool resuming_ = false;  // nothing of the set has come yet: the position is the subscriber's word
  bool busy_ = false;      // and it was not nothing, the last time
  size_t taken_bytes_ = 0;  // what that takes
  // After all that has been taken, and what is left of the snapshot.
  State written_;
  // What is left of the snapshot that is being taken: parts, the next one last (an empty deque
  // would take half a kilobyte for each subscriber), or a lazy one from some part on.
  std::vector<Event> parts_;
  Snapshot lazy_;
  size_t lazy_part_ = 0;
  std::unique_ptr<NextSnapshot> next_;
  std::unique_ptr<Rest> rest_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_CONFLATOR_H_
