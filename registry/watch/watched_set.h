// The instances that one subscription follows, and what its subscribers have been sent of them.
//
// Takes the events of an upstream stream, whatever breaks and resumes in between, and turns them
// into a clean stream of its own: a snapshot first, then only deltas that change something, each
// with the base that the one before left; a snapshot again where a delta would be long. It is pure:
// no lock, no clock, no thread. The owner holds its lock around every call, hands what comes back
// to the subscribers, and runs the two timers (the grace before "stale", the hold of an empty
// snapshot).
//
// The instances are an InstanceSet (registry/model/instance_set.h), which checks before it stores:
// a delta that does not follow on the event before is a gap. Nothing is stored, the position is
// dropped, and the owner opens the stream again. A snapshot older than what was sent, of the same
// epoch (a registry that lags behind another), is a gap too.
//
// Empty-push protection (Nacos' and Dubbo's lesson): an empty snapshot after a non-empty state is
// more often a registry that has just lost its data than a service without instances. It is held,
// the old state is marked stale, and Release() or a snapshot or delta with instances ends the hold.
// A delta that names its removals is accepted at once.
//
// Invariants:
// 1. Two events in a row never leave the same (instances, flags, epoch).
// 2. Within an epoch the published revision never goes back.
// 3. The base_revision of a delta is the revision of the event before.

#ifndef FAILBACK_REGISTRY_WATCH_WATCHED_SET_H_
#define FAILBACK_REGISTRY_WATCH_WATCHED_SET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "registry/model/event.h"
#include "registry/model/instance_set.h"
#include "registry/model/set_flags.h"

namespace failback {

class WatchedSet {
 public:
  // Whether an empty snapshot after a non-empty state is held back.
  explicit WatchedSet(bool hold_empty) : hold_empty_(hold_empty) {}

  // The next event of the upstream stream. This method and those below return what to send to the
  // subscribers; null: nothing.
  EventPtr Apply(const Event& event);

  // The last event did not fit: open the stream again, from epoch() and revision(). They are 0, or
  // after an older snapshot where the subscribers are: a registry that knows less has to catch up.
  bool gap() const { return gap_; }

  // Marks the state stale: the upstream is unavailable. An event that arrives ends it.
  EventPtr MarkStale();

  // Ends MarkStale() while the stream goes on without a new event.
  EventPtr MarkFresh();

  // Accepts the empty snapshot that is held.
  EventPtr Release();

  // The next stream starts with a snapshot.
  void DropPosition();

  // Begins with what was known earlier, as Whole() returned it, marked stale.
  void Restore(const Event& snapshot);

  // All that is known now, for a new subscriber; nothing before the first snapshot. Subscribers
  // that come at the same state share it.
  EventPtr Current();
  // The same as one SubscribeResponse, serialized, to be kept.
  std::string Whole() const;

  bool known() const { return known_; }
  bool holding() const { return held_.has_value(); }
  bool stale() const { return flags_.stale; }
  SetFlags flags() const { return flags_; }
  // As the subscribers have them.
  const InstanceSet& instances() const { return instances_; }

  // Where subscribers are that have received all.
  uint64_t told_epoch() const { return told_epoch_; }
  uint64_t told_revision() const { return told_revision_; }

  // Where a new stream may resume; zero when it must start with a snapshot.
  uint64_t epoch() const { return followed().epoch(); }
  uint64_t revision() const { return followed().revision(); }

 private:
  // The set that the upstream stream has reached.
  const InstanceSet& followed() const { return held_.has_value() ? *held_ : instances_; }
  EventPtr Gap();
  EventPtr SetStale(bool stale);
  // The flags have changed, and the instances have not.
  EventPtr PublishFlags();
  // Publishes what has made instances_ what they are.
  EventPtr Publish(InstanceSet::Changes changes, SetFlags flags);
  // Makes what is held the state.
  EventPtr TakeHeld(SetFlags flags);

  bool hold_empty_;
  bool known_ = false;
  SetFlags flags_;
  bool gap_ = false;
  InstanceSet instances_;
  // What the subscribers were sent last.
  uint64_t told_epoch_ = 0;
  uint64_t told_revision_ = 0;
  std::optional<InstanceSet> held_;  // an empty snapshot, and what deltas have added to it
  // Of the present state, as long as a subscriber has yet to read it.
  std::weak_ptr<const Event> snapshot_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_WATCHED_SET_H_
