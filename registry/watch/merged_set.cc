#include "registry/watch/merged_set.h"

#include <algorithm>
#include <utility>

#include "registry/model/canonical.h"

namespace failback {
namespace {

// Keys that are gone are remembered up to here; then a new epoch forgets them.
constexpr size_t kMaxDropped = 1000;

bool SameContent(const std::shared_ptr<const ServiceInstance>& a,
                 const std::shared_ptr<const ServiceInstance>& b) {
  return a == b || CanonicalInstance(*a) == CanonicalInstance(*b);
}

}  // namespace

MergedSet::MergedSet(size_t upstreams, uint64_t first_epoch)
    : sources_(upstreams), epoch_(first_epoch) {}

MergedSet::Instance MergedSet::Source::Find(const std::string& key) const {
  const auto it = instances.find(key);
  if (it == instances.end() || buried.count(key) > 0) return nullptr;
  return it->second;
}

MergedSet::Notification MergedSet::Apply(size_t upstream, const Event& message) {
  Change change;
  const std::set<std::string> touched = Take(upstream, message, &change);
  if (!begun_) {
    const bool all = std::all_of(sources_.begin(), sources_.end(),
                                 [](const Source& source) { return source.known; });
    return all || !waiting_ ? Begin() : Notification();
  }
  for (const std::string& key : touched) Update(key, &change);
  return Publish(change);
}

MergedSet::Notification MergedSet::Begin() {
  waiting_ = false;
  const bool any = std::any_of(sources_.begin(), sources_.end(),
                               [](const Source& source) { return source.known; });
  if (begun_ || !any) return {};
  begun_ = true;
  Change change;
  for (const Source& source : sources_) {
    for (const auto& [key, instance] : source.instances) Update(key, &change);
  }
  flags_ = Flags();
  return Snapshot();
}

std::set<std::string> MergedSet::Take(size_t upstream, const Event& message, Change* change) {
  Source& source = sources_[upstream];
  std::set<std::string> touched;
  if (message->has_snapshot()) {
    if (!source.parts.has_value()) source.parts.emplace();
    for (const ServiceInstance& instance : message->snapshot().instances()) {
      (*source.parts)[CanonicalKey(instance.key())] = Instance(message, &instance);
    }
    if (message->snapshot().more()) return touched;
  }
  const auto put = [&](const ServiceInstance& instance) {
    const std::string key = CanonicalKey(instance.key());
    source.instances[key] = Instance(message, &instance);
    touched.insert(key);
  };
  const auto touch_all = [&] {
    for (const auto& [key, instance] : source.instances) touched.insert(key);
  };
  // In either direction, other upstreams' words may count more or less than before.
  if (!source.known || source.stale != message->stale()) touch_all();
  if (!message->stale()) source.buried.clear();
  if (message->has_snapshot()) {
    change->new_epoch = source.known && source.epoch != message->epoch();
    touch_all();
    source.instances = *std::exchange(source.parts, std::nullopt);
    touch_all();
  } else if (message->has_delta()) {
    for (const InstanceKey& removal : message->delta().removals()) {
      const std::string key = CanonicalKey(removal);
      source.instances.erase(key);
      touched.insert(key);
    }
    for (const ServiceInstance& instance : message->delta().upserts()) put(instance);
  }
  source.known = true;
  source.stale = message->stale();
  source.held = message->held();
  source.epoch = message->epoch();
  if (source.stale) return touched;
  for (const std::string& key : touched) {
    if (source.instances.count(key) > 0) continue;
    for (Source& other : sources_) {
      if (other.stale && other.instances.count(key) > 0) other.buried.insert(key);
    }
  }
  return touched;
}

std::optional<size_t> MergedSet::Choose(const std::string& key) const {
  const auto has = [&](size_t i) { return sources_[i].Find(key) != nullptr; };
  std::optional<size_t> fresh, any;
  for (size_t i = sources_.size(); i-- > 0;) {
    if (!has(i)) continue;
    any = i;
    if (sources_[i].fresh()) fresh = i;
  }
  const auto shown = shown_.find(key);
  if (shown != shown_.end() && has(shown->second.source) &&
      (sources_[shown->second.source].fresh() || !fresh.has_value())) {
    return shown->second.source;
  }
  return fresh.has_value() ? fresh : any;
}

void MergedSet::Update(const std::string& key, Change* change) {
  const std::optional<size_t> source = Choose(key);
  const auto shown = shown_.find(key);
  if (!source.has_value()) {
    if (shown == shown_.end()) return;
    dropped_[key] = shown->second.source;
    shown_.erase(shown);
    change->removals.insert(key);
    if (dropped_.size() > kMaxDropped) change->new_epoch = true;
    return;
  }
  const Instance instance = sources_[*source].Find(key);
  if (shown == shown_.end()) {
    const auto dropped = dropped_.find(key);
    if (dropped != dropped_.end() && dropped->second != *source) change->new_epoch = true;
    shown_[key] = {*source, instance};
    change->upserts[key] = instance;
    return;
  }
  if (!SameContent(shown->second.instance, instance)) {
    if (shown->second.source != *source) change->new_epoch = true;
    change->upserts[key] = instance;
  }
  shown->second = {*source, instance};
}

MergedSet::Notification MergedSet::Publish(const Change& change) {
  const bool flags_changed = flags_ != Flags();
  flags_ = Flags();
  if (change.new_epoch) {
    NewEpoch();
    return Snapshot();
  }
  if (change.upserts.empty() && change.removals.empty() && !flags_changed) return {};
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(epoch_);
  flags_.Put(event.get());
  if (!change.upserts.empty() || !change.removals.empty()) {
    auto* delta = event->mutable_delta();
    delta->set_base_revision(revision_++);
    for (const auto& [key, instance] : change.upserts) *delta->add_upserts() = *instance;
    for (const std::string& key : change.removals) ParseCanonicalKey(key, delta->add_removals());
  }
  event->set_revision(revision_);
  if (TellsAsSnapshot(event->delta(), shown_.size())) return Current();
  return {std::move(event), nullptr};
}

MergedSet::Notification MergedSet::Snapshot() {
  ++revision_;
  return Current();
}

MergedSet::Notification MergedSet::Current() const {
  if (!begun_) return {};
  std::vector<SetSnapshot::Instance> instances;
  instances.reserve(shown_.size());
  for (const auto& [key, shown] : shown_) instances.push_back(shown.instance);
  return {nullptr,
          std::make_shared<const SetSnapshot>(epoch_, revision_, flags_, std::move(instances))};
}

bool MergedSet::AnyFresh() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Source& source) { return source.fresh(); });
}

SetFlags MergedSet::Flags() const {
  SetFlags flags;
  for (const Source& source : sources_) {
    flags.stale |= !source.fresh();
    flags.held |= source.held;
  }
  return flags;
}

void MergedSet::NewEpoch() {
  ++epoch_;
  if (epoch_ == 0) epoch_ = 1;
  revision_ = 0;
  dropped_.clear();
}

}  // namespace failback
