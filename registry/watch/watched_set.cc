#include "registry/watch/watched_set.h"

#include <limits>
#include <utility>

namespace failback {

EventPtr WatchedSet::Apply(const Event& event) {
  gap_ = false;
  switch (event.kind()) {
    case Event::Kind::kSnapshot: {
      if (known_ && event.epoch() == told_epoch_ && event.revision() < told_revision_) return Gap();
      Instances next;
      ApplyDelta(event, &next);
      if (hold_empty_ && next.empty() && !instances_.empty()) {
        epoch_ = event.epoch();
        revision_ = event.revision();
        held_.emplace();
        return MarkStale();
      }
      held_.reset();
      return Commit(std::move(next), event.epoch(), event.revision(), event.flags());
    }
    case Event::Kind::kFlags:
      if (!known_ || held_.has_value() || epoch_ != told_epoch_) return nullptr;
      snapshot_.reset();
      return PublishDelta(revision_, event.flags(), {}, {});
    case Event::Kind::kDelta:
      break;
  }
  if (!known_ || event.epoch() != epoch_ || event.base_revision() != revision_ ||
      event.revision() < revision_) {
    return Gap();
  }
  if (!held_.has_value()) return CommitDelta(event);
  ApplyDelta(event, &*held_);
  revision_ = event.revision();
  if (held_->empty()) return nullptr;
  Instances next = std::move(*held_);
  held_.reset();
  return Commit(std::move(next), epoch_, revision_, event.flags());
}

EventPtr WatchedSet::Gap() {
  gap_ = true;
  DropPosition();
  return nullptr;
}

void WatchedSet::DropPosition() {
  held_.reset();
  epoch_ = 0;
  revision_ = 0;
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
  return Event::Flags(told_epoch_, told_revision_, flags_);
}

EventPtr WatchedSet::Release() {
  if (!held_.has_value()) return nullptr;
  Instances next = std::move(*held_);
  held_.reset();
  return Commit(std::move(next), epoch_, revision_, {false, flags_.held});
}

EventPtr WatchedSet::Current() {
  if (!known_) return nullptr;
  EventPtr snapshot = snapshot_.lock();
  if (snapshot == nullptr) {
    snapshot = Event::Snapshot(told_epoch_, told_revision_, flags_, List());
    snapshot_ = snapshot;
  }
  return snapshot;
}

std::string WatchedSet::Whole() const {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  return Event::Snapshot(told_epoch_, told_revision_, {flags_.stale, /*held=*/false}, List(),
                         {kNone, kNone})
      ->EncodedPart(0);
}

std::vector<Blob> WatchedSet::List() const {
  std::vector<Blob> instances;
  instances.reserve(instances_.size());
  for (const auto& [key, instance] : instances_) instances.push_back(instance);
  return instances;
}

void WatchedSet::Restore(const Event& snapshot) {
  snapshot_.reset();
  ApplyDelta(snapshot, &instances_);
  known_ = true;
  flags_ = {true, false};
  epoch_ = told_epoch_ = snapshot.epoch();
  revision_ = told_revision_ = snapshot.revision();
}

EventPtr WatchedSet::Commit(Instances next, uint64_t epoch, uint64_t revision, SetFlags flags) {
  epoch_ = epoch;
  revision_ = revision;
  snapshot_.reset();
  if (!known_ || told_epoch_ != epoch) {
    known_ = true;
    flags_ = flags;
    told_epoch_ = epoch;
    told_revision_ = revision;
    instances_ = std::move(next);
    return Current();
  }
  std::vector<Blob> upserts;
  std::vector<std::string> removals;
  for (const auto& [key, instance] : next) {
    const auto it = instances_.find(key);
    if (it == instances_.end() || it->second != instance) upserts.push_back(instance);
  }
  for (const auto& [key, instance] : instances_) {
    if (next.find(key) == next.end()) removals.push_back(key);
  }
  instances_ = std::move(next);
  return PublishDelta(revision, flags, std::move(upserts), std::move(removals));
}

EventPtr WatchedSet::CommitDelta(const Event& event) {
  epoch_ = event.epoch();
  revision_ = event.revision();
  snapshot_.reset();
  std::vector<Blob> upserts;
  std::vector<std::string> removals;
  for (const std::string& key : event.removals()) {
    if (instances_.erase(key) > 0) removals.push_back(key);
  }
  event.ForEachInstance([&](const Blob& instance) {
    Blob& known = instances_[KeyOf(instance)];
    if (known == instance) return;
    known = instance;
    upserts.push_back(instance);
  });
  return PublishDelta(revision_, event.flags(), std::move(upserts), std::move(removals));
}

EventPtr WatchedSet::PublishDelta(uint64_t revision, SetFlags flags, std::vector<Blob> upserts,
                                  std::vector<std::string> removals) {
  const bool flags_changed = flags != std::exchange(flags_, flags);
  if (upserts.empty() && removals.empty()) {
    return flags_changed ? Event::Flags(told_epoch_, told_revision_, flags) : nullptr;
  }
  EventPtr delta = Event::Delta(told_epoch_, std::exchange(told_revision_, revision), revision,
                                flags, std::move(upserts), std::move(removals));
  return IsBetterAsSnapshot(*delta, instances_.size()) ? Current() : delta;
}

void WatchedSet::ApplyDelta(const Event& event, Instances* instances) {
  for (const std::string& key : event.removals()) instances->erase(key);
  event.ForEachInstance([&](const Blob& instance) { (*instances)[KeyOf(instance)] = instance; });
}

}  // namespace failback
