#include "registry/last_known_sets.h"

#include <iterator>
#include <utility>

namespace failback {

std::vector<std::string> LastKnownSets::Put(const std::string& selector, std::string set) {
  Take(selector);
  entries_.push_back({selector, std::make_shared<const std::string>(std::move(set))});
  places_[selector] = std::prev(entries_.end());
  bytes_ += BytesOf(entries_.back());
  std::vector<std::string> dropped;
  while (entries_.size() > max_sets_ || bytes_ > max_bytes_) {
    dropped.push_back(entries_.front().selector);
    Erase(entries_.begin());
  }
  return dropped;
}

LastKnownSets::Set LastKnownSets::Take(const std::string& selector) {
  const auto place = places_.find(selector);
  if (place == places_.end()) return nullptr;
  const Set set = place->second->set;
  Erase(place->second);
  return set;
}

void LastKnownSets::Erase(std::list<Entry>::iterator entry) {
  bytes_ -= BytesOf(*entry);
  places_.erase(entry->selector);
  entries_.erase(entry);
}

}  // namespace failback
