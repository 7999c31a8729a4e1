#include "registry/watch/watched_set.h"

#include <utility>

#include "registry/model/canonical.h"

namespace failback {
namespace {

bool SameInstance(const ServiceInstance& a, const ServiceInstance& b) {
  return CanonicalInstance(a) == CanonicalInstance(b);
}

}  // namespace

WatchedSet::Notification WatchedSet::Apply(const SubscribeResponse& message) {
  gap_ = false;
  if (message.has_snapshot()) {
    if (!parts_.has_value()) {
      parts_.emplace();
      parts_epoch_ = message.epoch();
      parts_revision_ = message.revision();
    } else if (parts_epoch_ != message.epoch() || parts_revision_ != message.revision()) {
      return Gap();
    }
    for (const ServiceInstance& instance : message.snapshot().instances()) {
      (*parts_)[CanonicalKey(instance.key())] = std::make_shared<const ServiceInstance>(instance);
    }
    if (message.snapshot().more()) return {};
    Instances next = std::move(*parts_);
    parts_.reset();
    if (known_ && message.epoch() == told_epoch_ && message.revision() < told_revision_) {
      return Gap();
    }
    if (hold_empty_ && next.empty() && !instances_.empty()) {
      epoch_ = message.epoch();
      revision_ = message.revision();
      held_ = Held{};
      return MarkStale();
    }
    held_.reset();
    return Commit(std::move(next), message.epoch(), message.revision(), SetFlags::Of(message));
  }
  if (parts_.has_value()) return Gap();
  if (!message.has_delta()) {
    if (!known_ || held_.has_value() || epoch_ != told_epoch_) return {};
    return Commit(instances_, epoch_, revision_, SetFlags::Of(message));
  }
  if (!known_ || message.epoch() != epoch_ || message.delta().base_revision() != revision_ ||
      message.revision() < revision_) {
    return Gap();
  }
  if (held_.has_value()) {
    ApplyDelta(message.delta(), &held_->instances);
    revision_ = message.revision();
    if (held_->instances.empty()) return {};
    Instances next = std::move(held_->instances);
    held_.reset();
    return Commit(std::move(next), epoch_, revision_, SetFlags::Of(message));
  }
  return CommitDelta(message);
}

WatchedSet::Notification WatchedSet::Gap() {
  gap_ = true;
  DropPosition();
  return {};
}

void WatchedSet::DropPosition() {
  parts_.reset();
  held_.reset();
  epoch_ = 0;
  revision_ = 0;
}

WatchedSet::Notification WatchedSet::MarkStale() { return SetStale(true); }

WatchedSet::Notification WatchedSet::MarkFresh() {
  // An empty snapshot that is held is newer than what was sent.
  return held_.has_value() ? Notification() : SetStale(false);
}

WatchedSet::Notification WatchedSet::SetStale(bool stale) {
  if (!known_ || flags_.stale == stale) return {};
  flags_.stale = stale;
  snapshot_.reset();
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(told_epoch_);
  event->set_revision(told_revision_);
  flags_.Put(event.get());
  return {std::move(event), nullptr};
}

WatchedSet::Notification WatchedSet::Release() {
  if (!held_.has_value()) return {};
  Instances next = std::move(held_->instances);
  held_.reset();
  return Commit(std::move(next), epoch_, revision_, {false, flags_.held});
}

WatchedSet::Notification WatchedSet::Current() {
  if (!known_) return {};
  std::shared_ptr<const SetSnapshot> snapshot = snapshot_.lock();
  if (snapshot == nullptr) {
    std::vector<SetSnapshot::Instance> instances;
    instances.reserve(instances_.size());
    for (const auto& [key, instance] : instances_) instances.push_back(instance);
    snapshot = std::make_shared<const SetSnapshot>(told_epoch_, told_revision_, flags_,
                                                   std::move(instances));
    snapshot_ = snapshot;
  }
  return {nullptr, std::move(snapshot)};
}

std::string WatchedSet::Whole() const {
  SubscribeResponse event;
  event.set_epoch(told_epoch_);
  event.set_revision(told_revision_);
  event.set_stale(flags_.stale);
  event.mutable_snapshot();
  for (const auto& [key, instance] : instances_) {
    *event.mutable_snapshot()->add_instances() = *instance;
  }
  return event.SerializeAsString();
}

void WatchedSet::Restore(const SubscribeResponse& snapshot) {
  snapshot_.reset();
  for (const ServiceInstance& instance : snapshot.snapshot().instances()) {
    instances_[CanonicalKey(instance.key())] = std::make_shared<const ServiceInstance>(instance);
  }
  known_ = true;
  flags_ = {true, false};
  epoch_ = told_epoch_ = snapshot.epoch();
  revision_ = told_revision_ = snapshot.revision();
}

WatchedSet::Notification WatchedSet::Commit(Instances next, uint64_t epoch, uint64_t revision,
                                            SetFlags flags) {
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
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(epoch);
  event->set_revision(revision);
  flags.Put(event.get());
  auto* delta = event->mutable_delta();
  delta->set_base_revision(told_revision_);
  for (const auto& [key, instance] : next) {
    const auto it = instances_.find(key);
    if (it != instances_.end() &&
        (it->second == instance || SameInstance(*it->second, *instance))) {
      continue;
    }
    *delta->add_upserts() = *instance;
  }
  for (const auto& [key, instance] : instances_) {
    if (next.find(key) == next.end()) *delta->add_removals() = instance->key();
  }
  instances_ = std::move(next);
  return PublishDelta(std::move(event));
}

WatchedSet::Notification WatchedSet::CommitDelta(const SubscribeResponse& message) {
  epoch_ = message.epoch();
  revision_ = message.revision();
  snapshot_.reset();
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(message.epoch());
  event->set_revision(message.revision());
  SetFlags::Of(message).Put(event.get());
  auto* delta = event->mutable_delta();
  delta->set_base_revision(told_revision_);
  for (const InstanceKey& key : message.delta().removals()) {
    if (instances_.erase(CanonicalKey(key)) > 0) *delta->add_removals() = key;
  }
  for (const ServiceInstance& instance : message.delta().upserts()) {
    auto& known = instances_[CanonicalKey(instance.key())];
    if (known != nullptr && SameInstance(*known, instance)) continue;
    known = std::make_shared<const ServiceInstance>(instance);
    *delta->add_upserts() = instance;
  }
  return PublishDelta(std::move(event));
}

WatchedSet::Notification WatchedSet::PublishDelta(std::shared_ptr<SubscribeResponse> event) {
  const SetFlags flags = SetFlags::Of(*event);
  const bool flags_changed = flags != std::exchange(flags_, flags);
  if (event->delta().upserts().empty() && event->delta().removals().empty()) {
    if (!flags_changed) return {};
    event->clear_delta();
    event->set_revision(told_revision_);
    return {std::move(event), nullptr};
  }
  told_epoch_ = event->epoch();
  told_revision_ = event->revision();
  if (TellsAsSnapshot(event->delta(), instances_.size())) return Current();
  return {std::move(event), nullptr};
}

void WatchedSet::ApplyDelta(const registry::v1::Delta& delta, Instances* instances) {
  for (const InstanceKey& key : delta.removals()) instances->erase(CanonicalKey(key));
  for (const ServiceInstance& instance : delta.upserts()) {
    (*instances)[CanonicalKey(instance.key())] = std::make_shared<const ServiceInstance>(instance);
  }
}

}  // namespace failback
