#include "registry/watch/merged_set.h"

#include <algorithm>
#include <utility>

namespace failback {
namespace {

// Keys that are gone are remembered up to here; then a new epoch forgets them.
constexpr size_t kMaxDropped = 1000;

}  // namespace

MergedSet::MergedSet(size_t upstreams, uint64_t first_epoch)
    : sources_(upstreams), epoch_(first_epoch) {}

Blob MergedSet::Source::Find(const std::string& key) const {
  const auto it = instances.find(key);
  if (it == instances.end() || buried.count(key) > 0) return Blob();
  return it->second;
}

EventPtr MergedSet::Apply(size_t upstream, const Event& event) {
  Change change;
  const std::set<std::string> touched = Take(upstream, event, &change);
  if (!begun_) {
    const bool all = std::all_of(sources_.begin(), sources_.end(),
                                 [](const Source& source) { return source.known; });
    return all || !waiting_ ? Begin() : nullptr;
  }
  for (const std::string& key : touched) Update(key, &change);
  return Publish(change);
}

EventPtr MergedSet::Begin() {
  waiting_ = false;
  const bool any = std::any_of(sources_.begin(), sources_.end(),
                               [](const Source& source) { return source.known; });
  if (begun_ || !any) return nullptr;
  begun_ = true;
  Change change;
  for (const Source& source : sources_) {
    for (const auto& [key, instance] : source.instances) Update(key, &change);
  }
  flags_ = Flags();
  return Snapshot();
}

std::set<std::string> MergedSet::Take(size_t upstream, const Event& event, Change* change) {
  Source& source = sources_[upstream];
  const SetFlags flags = event.flags();
  std::set<std::string> touched;
  const auto touch_all = [&] {
    for (const auto& [key, instance] : source.instances) touched.insert(key);
  };
  // In either direction, other upstreams' words may count more or less than before.
  if (!source.known || source.stale != flags.stale) touch_all();
  if (!flags.stale) source.buried.clear();
  if (event.is_snapshot()) {
    change->new_epoch = source.known && source.epoch != event.epoch();
    touch_all();
    source.instances.clear();
  }
  for (const std::string& key : event.removals()) {
    source.instances.erase(key);
    touched.insert(key);
  }
  event.ForEachInstance([&](const Blob& instance) {
    std::string key = KeyOf(instance);
    source.instances[key] = instance;
    touched.insert(std::move(key));
  });
  source.known = true;
  source.stale = flags.stale;
  source.held = flags.held;
  source.epoch = event.epoch();
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
  const auto has = [&](size_t i) { return static_cast<bool>(sources_[i].Find(key)); };
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
  const Blob instance = sources_[*source].Find(key);
  if (shown == shown_.end()) {
    const auto dropped = dropped_.find(key);
    if (dropped != dropped_.end() && dropped->second != *source) change->new_epoch = true;
    shown_[key] = {*source, instance};
    change->upserts[key] = instance;
    return;
  }
  if (shown->second.instance != instance) {
    if (shown->second.source != *source) change->new_epoch = true;
    change->upserts[key] = instance;
  }
  shown->second = {*source, instance};
}

EventPtr MergedSet::Publish(const Change& change) {
  const bool flags_changed = flags_ != Flags();
  flags_ = Flags();
  if (change.new_epoch) {
    NewEpoch();
    return Snapshot();
  }
  if (change.upserts.empty() && change.removals.empty()) {
    return flags_changed ? Event::Flags(epoch_, revision_, flags_) : nullptr;
  }
  std::vector<Blob> upserts;
  upserts.reserve(change.upserts.size());
  for (const auto& [key, instance] : change.upserts) upserts.push_back(instance);
  const uint64_t base = revision_++;
  EventPtr delta = Event::Delta(epoch_, base, revision_, flags_, std::move(upserts),
                                {change.removals.begin(), change.removals.end()});
  return IsBetterAsSnapshot(*delta, shown_.size()) ? Current() : delta;
}

EventPtr MergedSet::Snapshot() {
  ++revision_;
  return Current();
}

EventPtr MergedSet::Current() const {
  if (!begun_) return nullptr;
  std::vector<Blob> instances;
  instances.reserve(shown_.size());
  for (const auto& [key, shown] : shown_) instances.push_back(shown.instance);
  return Event::Snapshot(epoch_, revision_, flags_, std::move(instances));
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
