#include "registry/failback/last_known_sets.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace failback {

std::vector<std::string> LastKnownSets::Put(const std::string& selector, std::string set,
                                            const std::string& owner) {
  Take(selector);
  entries_.push_back({selector, std::make_shared<const std::string>(std::move(set)), owner});
  places_[selector] = std::prev(entries_.end());
  bytes_ += BytesOf(entries_.back());
  if (!owner.empty()) {
    Total& total = of_owners_[owner];
    ++total.sets;
    total.bytes += BytesOf(entries_.back());
  }
  std::vector<std::string> dropped;
  while (entries_.size() > max_sets_ || bytes_ > max_bytes_) {
    const auto next = ToGo();
    dropped.push_back(next->selector);
    Erase(next);
  }
  return dropped;
}

LastKnownSets::Set LastKnownSets::Take(const std::string& selector) {
  const auto place = places_.find(selector);
  if (place == places_.end()) return nullptr;
  Set set = place->second->set;
  Erase(place->second);
  return set;
}

// The oldest of the owner that has more than its share, else of all.
std::list<LastKnownSets::Entry>::iterator LastKnownSets::ToGo() {
  for (const auto& [owner, total] : of_owners_) {
    if (total.sets <= max_sets_ / 2 && total.bytes <= max_bytes_ / 2) continue;
    return std::find_if(entries_.begin(), entries_.end(),
                        [&, &owner = owner](const Entry& entry) { return entry.owner == owner; });
  }
  return entries_.begin();
}

void LastKnownSets::Erase(std::list<Entry>::iterator entry) {
  bytes_ -= BytesOf(*entry);
  if (const auto total = of_owners_.find(entry->owner); total != of_owners_.end()) {
    total->second.bytes -= BytesOf(*entry);
    if (--total->second.sets == 0) of_owners_.erase(total);
  }
  places_.erase(entry->selector);
  entries_.erase(entry);
}

}  // namespace failback
