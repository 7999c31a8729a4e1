#include "registry/watched_set.h"

#include <utility>

#include "registry/canonical.h"

namespace failback {
namespace {

bool SameInstance(const ServiceInstance& a, const ServiceInstance& b) {
  return CanonicalInstance(a) == CanonicalInstance(b);
}

}  // namespace

WatchedSet::Event WatchedSet::Apply(const SubscribeResponse& message) {
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
    if (message.snapshot().more()) return nullptr;
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
    return Commit(std::move(next), message.epoch(), message.revision(), message.stale());
  }
  if (parts_.has_value()) return Gap();
  if (!message.has_delta()) {
    if (!known_ || held_.has_value() || epoch_ != told_epoch_) return nullptr;
    return Commit(instances_, epoch_, revision_, message.stale());
  }
  if (!known_ || message.epoch() != epoch_ || message.delta().base_revision() != revision_ ||
      message.revision() < revision_) {
    return Gap();
  }
  if (held_.has_value()) {
    ApplyDelta(message.delta(), &held_->instances);
    revision_ = message.revision();
    if (held_->instances.empty()) return nullptr;
    Instances next = std::move(held_->instances);
    held_.reset();
    return Commit(std::move(next), epoch_, revision_, message.stale());
  }
  return CommitDelta(message);
}

WatchedSet::Event WatchedSet::Gap() {
  gap_ = true;
  parts_.reset();
  held_.reset();
  epoch_ = 0;
  revision_ = 0;
  return nullptr;
}

WatchedSet::Event WatchedSet::MarkStale() { return SetStale(true); }

WatchedSet::Event WatchedSet::MarkFresh() {
  // An empty snapshot that is held is newer than what was told.
  return held_.has_value() ? nullptr : SetStale(false);
}

WatchedSet::Event WatchedSet::SetStale(bool stale) {
  if (!known_ || stale_ == stale) return nullptr;
  stale_ = stale;
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(told_epoch_);
  event->set_revision(told_revision_);
  event->set_stale(stale);
  return event;
}

WatchedSet::Event WatchedSet::Release() {
  if (!held_.has_value()) return nullptr;
  Instances next = std::move(held_->instances);
  held_.reset();
  return Commit(std::move(next), epoch_, revision_, false);
}

WatchedSet::Event WatchedSet::Current() const {
  if (!known_) return nullptr;
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(told_epoch_);
  event->set_revision(told_revision_);
  event->set_stale(stale_);
  event->mutable_snapshot();
  for (const auto& [key, instance] : instances_) {
    *event->mutable_snapshot()->add_instances() = *instance;
  }
  return event;
}

void WatchedSet::Restore(const SubscribeResponse& snapshot) {
  for (const ServiceInstance& instance : snapshot.snapshot().instances()) {
    instances_[CanonicalKey(instance.key())] = std::make_shared<const ServiceInstance>(instance);
  }
  known_ = true;
  stale_ = true;
  epoch_ = told_epoch_ = snapshot.epoch();
  revision_ = told_revision_ = snapshot.revision();
}

WatchedSet::Event WatchedSet::Commit(Instances next, uint64_t epoch, uint64_t revision,
                                     bool stale) {
  epoch_ = epoch;
  revision_ = revision;
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(epoch);
  event->set_revision(revision);
  event->set_stale(stale);
  const bool whole = !known_ || told_epoch_ != epoch;
  auto* delta = whole ? nullptr : event->mutable_delta();
  if (whole) {
    for (const auto& [key, instance] : next) {
      *event->mutable_snapshot()->add_instances() = *instance;
    }
    event->mutable_snapshot();
  } else {
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
  }
  known_ = true;
  instances_ = std::move(next);
  return Told(std::move(event));
}

WatchedSet::Event WatchedSet::CommitDelta(const SubscribeResponse& message) {
  epoch_ = message.epoch();
  revision_ = message.revision();
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(message.epoch());
  event->set_revision(message.revision());
  event->set_stale(message.stale());
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
  return Told(std::move(event));
}

WatchedSet::Event WatchedSet::Told(std::shared_ptr<SubscribeResponse> event) {
  const bool stale_changed = event->stale() != stale_;
  stale_ = event->stale();
  if (event->has_delta() && event->delta().upserts().empty() && event->delta().removals().empty()) {
    if (!stale_changed) return nullptr;
    event->clear_delta();
    event->set_revision(told_revision_);
    return event;
  }
  told_epoch_ = event->epoch();
  told_revision_ = event->revision();
  return event;
}

void WatchedSet::ApplyDelta(const registry::v1::Delta& delta, Instances* instances) {
  for (const InstanceKey& key : delta.removals()) instances->erase(CanonicalKey(key));
  for (const ServiceInstance& instance : delta.upserts()) {
    (*instances)[CanonicalKey(instance.key())] = std::make_shared<const ServiceInstance>(instance);
  }
}

}  // namespace failback
