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
// Parts of a snapshot are taken as numbers, to be encoded when they are written.
//
// To know that a change has turned back, the conflator remembers 64-bit digests of the keys and
// contents that the subscriber has (registry/watch/known_set.h), up to kMaxContents instances; those
// who have the same share them. Of a larger set, and of what a subscriber had before it resumed, the
// contents are not known: such a key that changed forth and back while the subscriber was behind may
// be sent once without need.
//
// Thread safety: none of its own.
//
// Invariants (`Add` takes a stream in the order of registry/model/event_order.h):
//  1. What Take returns is a stream in that order too, and ends in the same state.
//  2. No two messages in a row leave the same state, but for the first after resuming, and as
//  above.
//  3. It holds at most kMaxBytes: with what has been taken last, until the next Take, as that is
//     being written. But for deltas below kSharedBytes that wait as they came, which are shared.

#ifndef FAILBACK_REGISTRY_WATCH_CONFLATOR_H_
#define FAILBACK_REGISTRY_WATCH_CONFLATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/event_order.h"
#include "registry/model/set_flags.h"
#include "registry/watch/known_set.h"

namespace failback {

class Conflator {
 public:
  // A message to be written: a part of an event. Without event: there is none.
  struct Message {
    EventPtr event;
    size_t part = 0;

    explicit operator bool() const { return event != nullptr; }
  };

  // What one event does.
  using Change = KnownSet::Change;
  struct ChangeList {
    ChangeList(std::vector<Change> list, size_t bytes) : changes(std::move(list)), bytes(bytes) {}

    const KnownSet::Changes changes;
    const size_t bytes;  // of a delta's message, serialized
  };
  using Changes = std::shared_ptr<const ChangeList>;

  // The changes of `event`: its instances and then its removals, in their order; none for a snapshot
  // that is so large that they are not remembered. Those of an event that many subscribers get are
  // worth computing once.
  static Changes ChangesOf(const Event& event);

  // What one subscriber may hold of its own. Beyond it its stream ends: a snapshot is shorter then.
  // A stream takes some 20 KiB besides.
  static constexpr size_t kMaxBytes = 960 << 10;
  // A larger delta that has to wait is taken apart at once: others may have let go of it.
  static constexpr size_t kSharedBytes = 16 << 10;
  // Instances whose contents are remembered.
  static constexpr size_t kMaxContents = 8192;

  // A subscriber that resumes after (`epoch`, `revision`); 0 and 0 for one that starts over.
  Conflator(uint64_t epoch, uint64_t revision);

  // Takes the next event of the source. ABORTED when it does not follow from the one before, or
  // when kMaxBytes are passed: end the stream, the subscriber starts over. `changes` are those of
  // `event`, computed if null.
  absl::Status Add(EventPtr event, Changes changes = nullptr);

  // The next message to write, or none when the subscriber is up to date. What was taken before has
  // been written.
  Message Take();

  // What was taken last has been written. For who takes of many and comes back to this one only when
  // there is something to take.
  void Written() {
    busy_ = false;
    taken_bytes_ = 0;
  }

  // Operations and parts that wait; for tests and statistics.
  size_t pending() const;

  // About how many bytes are still to be written.
  size_t waiting_bytes() const;

  // As bytes(), of what waits or is being written alone.
  size_t held_bytes() const;

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
    KnownSetPtr contents;

    void Apply(const KnownSet::Changes& changes);
    void MoveTo(const Event& event);
    // The content of `key`, 0 when it is absent, or nullopt when that is not known.
    std::optional<uint64_t> ContentOf(uint64_t key) const;
    size_t bytes() const;
  };

  // A snapshot of which nothing has been taken.
  struct NextSnapshot {
    EventPtr event;
    State after;
  };

  // The newest of what happened to one key.
  struct Operation {
    uint64_t content = 0;
    Blob bytes;  // the instance, or, when content is 0, its canonical key
  };

  // What follows the snapshots: one event as it came, or several merged.
  struct Rest {
    EventPtr single;  // null once merged
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
  absl::Status CheckForward(const Event& snapshot);
  absl::Status AddToRest(EventPtr event, Changes changes);
  // Merges `event` into rest_.
  void Merge(const Event& event, const std::vector<Change>& changes);
  // Turns the single event of rest_ into operations.
  void Unfold();
  // Makes next_ the snapshot that is being taken, unless it is no news.
  void StartNext();
  // Takes rest_, or null when it changes nothing.
  EventPtr TakeRest();
  EventPtr TakeMerged();

  EventOrder order_;
  bool told_ = false;      // Take has returned something
  bool resuming_ = false;  // nothing of the set has come yet: the position is the subscriber's word
  bool busy_ = false;      // and it was not nothing, the last time
  size_t taken_bytes_ = 0;  // what that takes
  // After all that has been taken, and what is left of the snapshot.
  State written_;
  // The snapshot that is being taken, and its next part; null: none is.
  EventPtr snapshot_;
  size_t part_ = 0;
  std::unique_ptr<NextSnapshot> next_;
  std::unique_ptr<Rest> rest_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_CONFLATOR_H_
