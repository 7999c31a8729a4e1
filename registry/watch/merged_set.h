// The instances of one selector as several upstreams report them, merged by key into one stream.
//
// Takes the streams of several FailbackRegistries (snapshots, deltas that follow on one another)
// and gives one stream of the same kind. It is pure: no lock, no clock, no thread.
//
// The merged set is the union: an instance is there while any upstream has it. What is published of
// a key is what one upstream says of it, and it stays with that upstream for as long as it can, so
// that an answer that came late at another one does not undo what was published. It moves on when
// its upstream drops it or goes stale while a fresh one has it: to the first fresh one, in the
// order of the configuration, else to the first stale one. A removal that a fresh upstream reports
// is accepted against those that are stale: an unavailable registry keeps no ghosts alive that the
// others have buried.
//
// Revisions of two registries cannot be compared, so the merged stream has a history of its own.
// When it might go back (another upstream becomes the authoritative source of a key, an upstream
// begins a new epoch) it begins a new epoch, with a snapshot; that is what epochs are for.
//
//   MergedSet set(2, first_epoch);
//   EventPtr published = set.Apply(0, event);  // null: nothing to publish yet
//   published = set.Begin();                   // do not wait for the second one any longer
//
// The set is stale while any upstream is stale or has not sent anything: part of it may be old. It
// is held while it is so at any upstream.
//
// Invariants:
// 1. Two events in a row never leave the same (instances, flags, epoch).
// 2. Within an epoch what is published of a key comes from one upstream in its order, or is the
//    same at the one that it moves to.
// 3. The base_revision of a delta is the revision of the event before.
// 4. The set holds exactly the keys that a fresh upstream has, and those that only stale ones have
//    and no fresh one has removed.

#ifndef FAILBACK_REGISTRY_WATCH_MERGED_SET_H_
#define FAILBACK_REGISTRY_WATCH_MERGED_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/set_flags.h"

namespace failback {

class MergedSet {
 public:
  // `upstreams`, at least one; `first_epoch` not zero.
  MergedSet(size_t upstreams, uint64_t first_epoch);

  // The next event of the upstream's stream. This method and those below return what to send to the
  // subscriber; null: nothing.
  EventPtr Apply(size_t upstream, const Event& event);

  // Nothing is published until every upstream has sent its first state, so that a subscriber does
  // not take one upstream's part for the whole. This ends the wait: what is known is published now,
  // and if that is nothing, the first that comes.
  EventPtr Begin();

  // All that has been published; nothing before the first snapshot.
  EventPtr Current() const;

  // Whether any upstream has sent its current state.
  bool AnyFresh() const;

 private:
  struct Source {
    bool known = false;
    bool stale = false;
    bool held = false;
    uint64_t epoch = 0;
    std::map<std::string, Blob> instances;  // by canonical key
    // Removed by a fresh upstream while this one was stale.
    std::set<std::string> buried;

    bool fresh() const { return known && !stale; }
    // Null: it has none.
    Blob Find(const std::string& key) const;
  };

  struct Shown {
    size_t source;
    Blob instance;
  };

  // What one event changes.
  struct Change {
    std::map<std::string, Blob> upserts;
    std::set<std::string> removals;
    bool new_epoch = false;
  };

  // Takes the event in; which keys have to be looked at again.
  std::set<std::string> Take(size_t upstream, const Event& event, Change* change);
  // Which upstream's word on `key` counts now; nullopt when none has it.
  std::optional<size_t> Choose(const std::string& key) const;
  void Update(const std::string& key, Change* change);
  EventPtr Publish(const Change& change);
  EventPtr Snapshot();
  // Of the set.
  SetFlags Flags() const;
  void NewEpoch();

  std::vector<Source> sources_;
  std::map<std::string, Shown> shown_;
  // Whose word was the last on a key that is gone, in this epoch.
  std::map<std::string, size_t> dropped_;
  bool waiting_ = true;
  bool begun_ = false;
  SetFlags flags_;
  uint64_t epoch_;
  uint64_t revision_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_MERGED_SET_H_
