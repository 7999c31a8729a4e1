#include "registry/watch/watched_set.h"

#include <limits>
#include <utility>

namespace failback {

EventPtr WatchedSet::Apply(const Event& event) {
  gap_ = false;
  InstanceSet::Changes changes;
  switch (event.kind()) {
    case Event::Kind::kSnapshot:
      if (known_ && event.epoch() == told_epoch_ && event.revision() < told_revision_) {
        // Asked from nowhere again, it would say the same again.
        Gap();
        instances_.ResumeAt(told_epoch_, told_revision_);
        return nullptr;
      }
      held_.reset();
      if (hold_empty_ && event.instances() == 0 && !instances_.empty()) {
        held_.emplace().Apply(event).IgnoreError();  // nothing comes before a snapshot
        return MarkStale();
      }
      // It may be of an earlier revision than the stream has reached, but not than was sent.
      instances_.DropPosition();
      instances_.Apply(event, &changes).IgnoreError();
      return Publish(std::move(changes), event.flags());
    case Event::Kind::kFlags:
      if (!known_ || held_.has_value() || epoch() != told_epoch_) return nullptr;
      return Publish({}, event.flags());
    case Event::Kind::kDelta:
      break;
  }
  if (held_.has_value()) {
    if (!held_->Apply(event).ok()) return Gap();
    return held_->empty() ? nullptr : TakeHeld(event.flags());
  }
  if (!instances_.Apply(event, &changes).ok()) return Gap();
  return Publish(std::move(changes), event.flags());
}

EventPtr WatchedSet::Gap() {
  gap_ = true;
  DropPosition();
  return nullptr;
}

void WatchedSet::DropPosition() {
  held_.reset();
  instances_.DropPosition();
}

EventPtr WatchedSet::MarkStale() { return SetStale(true); }

EventPtr WatchedSet::MarkFresh() {
  // An empty snapshot that is held is newer than what was sent.
  return held_.has_value() ? nullptr : SetStale(false);
}

EventPtr WatchedSet::SetStale(bool stale) {
  if (!known_ || flags_.stale == stale) return nullptr;
  flags_.stale = stale;
  snapshot_.reset();
  return PublishFlags();
}

EventPtr WatchedSet::PublishFlags() {
  // What is held may be of a revision in between, and is sent later.
  if (held_.has_value() || instances_.epoch() != told_epoch_ ||
      instances_.revision() <= told_revision_) {
    return Event::Flags(told_epoch_, told_revision_, flags_);
  }
  // Revisions that have changed nothing here. Who resumes from one of them is not to be sent an
  // older one.
  const uint64_t base = std::exchange(told_revision_, instances_.revision());
  return Event::Delta(told_epoch_, base, told_revision_, flags_, {}, {});
}

EventPtr WatchedSet::Release() {
  return held_.has_value() ? TakeHeld({false, flags_.held}) : nullptr;
}

EventPtr WatchedSet::TakeHeld(SetFlags flags) {
  InstanceSet next = *std::exchange(held_, std::nullopt);
  InstanceSet::Changes changes = InstanceSet::Difference(instances_, next);
  instances_ = std::move(next);
  return Publish(std::move(changes), flags);
}

EventPtr WatchedSet::Current() {
  if (!known_) return nullptr;
  EventPtr snapshot = snapshot_.lock();
  if (snapshot == nullptr) {
    snapshot =
        Event::SharedSnapshot(told_epoch_, told_revision_, flags_, instances_.runs(), PartLimits());
    snapshot_ = snapshot;
  }
  return snapshot;
}

std::string WatchedSet::Whole() const {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  return Event::SharedSnapshot(told_epoch_, told_revision_, {flags_.stale, /*held=*/false},
                               instances_.runs(), {kNone, kNone})
      ->EncodedPart(0);
}

void WatchedSet::Restore(const Event& snapshot) {
  snapshot_.reset();
  instances_.DropPosition();
  instances_.Apply(snapshot).IgnoreError();
  known_ = true;
  flags_ = {true, false};
  told_epoch_ = snapshot.epoch();
  told_revision_ = snapshot.revision();
}

EventPtr WatchedSet::Publish(InstanceSet::Changes changes, SetFlags flags) {
  snapshot_.reset();
  if (!known_ || told_epoch_ != instances_.epoch()) {
    known_ = true;
    flags_ = flags;
    told_epoch_ = instances_.epoch();
    told_revision_ = instances_.revision();
    return Current();
  }
  const bool flags_changed = flags != std::exchange(flags_, flags);
  if (changes.empty()) {
    return flags_changed ? PublishFlags() : nullptr;
  }
  const uint64_t base = std::exchange(told_revision_, instances_.revision());
  EventPtr delta = Event::Delta(told_epoch_, base, told_revision_, flags,
                                std::move(changes.upserts), std::move(changes.removals));
  return IsBetterAsSnapshot(*delta, instances_.size()) ? Current() : delta;
}

}  // namespace failback
