// Who may see an instance: followers of one service, found by one condition of their filters.
//
// A filter is a conjunction of conditions on an instance's metadata, zone and status. A follower is
// kept under one of them that is met by few, so that a change is compared only with the filters of
// those that it may concern.
//
//   group->conditions = index.Add(group->selector, group);
//   index.ForEachCandidate(instance, [&](Group* group) { ... SelectorMatches ... });
//   index.Remove(group->conditions, group);
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_WATCH_FILTER_INDEX_H_
#define FAILBACK_REGISTRY_WATCH_FILTER_INDEX_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "registry/model/selector.h"
#include "registry/registry.h"

namespace failback {

template <typename Follower>
class FilterIndex {
 public:
  // Of these conditions at least one is met by each instance that the filter lets pass.
  using Conditions = std::vector<std::string>;

  // `selector` has a filter.
  Conditions Add(const Selector& selector, Follower* follower) {
    Conditions conditions = Choose(selector);
    for (const std::string& condition : conditions) followers_[condition].insert(follower);
    if (!selector.metadata().empty()) ++by_metadata_;
    ++size_;
    return conditions;
  }

  // With the same selector and what Add returned.
  void Remove(const Selector& selector, const Conditions& conditions, Follower* follower) {
    for (const std::string& condition : conditions) {
      const auto it = followers_.find(condition);
      if (it == followers_.end()) continue;  // named twice
      it->second.erase(follower);
      if (it->second.empty()) followers_.erase(it);
    }
    if (!selector.metadata().empty()) --by_metadata_;
    --size_;
  }

  // Calls `use` with each follower that may see `instance`; with some perhaps more than once.
  template <typename Use>
  void ForEachCandidate(const ServiceInstance& instance, Use use) const {
    if (followers_.empty()) return;
    const auto look = [&](const std::string& condition) {
      const auto it = followers_.find(condition);
      if (it == followers_.end()) return;
      for (Follower* const follower : it->second) use(follower);
    };
    look(OfStatus(EffectiveStatus(instance)));
    look(OfZone(instance.zone()));
    if (by_metadata_ == 0) return;
    for (const auto& [key, value] : instance.metadata()) look(OfMetadata(key, value));
  }

  size_t size() const { return size_; }

 private:
  static std::string OfStatus(int status) { return absl::StrCat("s", status); }
  static std::string OfZone(const std::string& zone) { return absl::StrCat("z", zone); }
  // Neither has a NUL.
  static std::string OfMetadata(const std::string& key, const std::string& value) {
    return absl::StrCat("m", key, std::string(1, '\0'), value);
  }

  // Of metadata the one under which there are the fewest, or each zone, if that is fewer; each
  // state, if there is no other.
  Conditions Choose(const Selector& selector) const {
    Conditions chosen;
    size_t fewest = 0;
    for (const auto& [key, value] : selector.metadata()) {
      std::string condition = OfMetadata(key, value);
      const auto it = followers_.find(condition);
      const size_t there = it == followers_.end() ? 0 : it->second.size();
      if (!chosen.empty() && there >= fewest) continue;
      fewest = there;
      chosen.clear();
      chosen.push_back(std::move(condition));
    }
    Conditions zones;
    size_t in_zones = 0;
    for (const std::string& zone : selector.zones()) {
      zones.push_back(OfZone(zone));
      const auto it = followers_.find(zones.back());
      if (it != followers_.end()) in_zones += it->second.size();
    }
    if (!zones.empty() && (chosen.empty() || in_zones < fewest)) chosen = std::move(zones);
    if (!chosen.empty()) return chosen;
    for (const int status : selector.statuses()) {
      ServiceInstance instance;
      instance.set_status(static_cast<registry::v1::HealthStatus>(status));
      chosen.push_back(OfStatus(EffectiveStatus(instance)));
    }
    return chosen;
  }

  absl::flat_hash_map<std::string, absl::flat_hash_set<Follower*>> followers_;
  size_t size_ = 0;
  size_t by_metadata_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_FILTER_INDEX_H_
