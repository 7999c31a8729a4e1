// A map from keys to values, walked in the order in which they came.
//
// The key of an entry lies in what its value points at, and stays as it is. The order is the same
// in every process, so a simulation with the same seed runs the same; that of a hash table with a
// seed of its own is not.
//
//   OrderedIndex<std::shared_ptr<Record>> index;
//   index.Add(record->key, record);
//   if (auto* found = index.Find(key)) (*found)->Touch();
//   for (const auto& [key, record] : index) …
//   index.Remove(key);
//
// The entries lie in a vector; a hash table has each one's hash and place. So a look-up that finds
// nothing touches the table alone, and growing touches no key. What is removed leaves a gap, which
// goes when the vector would have to grow.
//
// Thread safety: as a plain container. Remove keeps iterators valid, other than to what it removes;
// Add does not.

#ifndef FAILBACK_REGISTRY_FAILBACK_ORDERED_INDEX_H_
#define FAILBACK_REGISTRY_FAILBACK_ORDERED_INDEX_H_

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace failback {

// `Value` is a pointer of some kind, and none that is kept is null.
template <typename Value>
class OrderedIndex {
 public:
  struct Entry {
    std::string_view key;
    Value value{};  // null: a gap
  };

  // Skips the gaps.
  class Iterator {
   public:
    Iterator(const Entry* at, const Entry* end) : at_(at), end_(end) { SkipGaps(); }
    const Entry& operator*() const { return *at_; }
    Iterator& operator++() {
      ++at_;
      SkipGaps();
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    void SkipGaps() {
      while (at_ != end_ && at_->value == nullptr) ++at_;
    }
    const Entry* at_;
    const Entry* end_;
  };

  Iterator begin() const { return {entries_.data(), entries_.data() + entries_.size()}; }
  Iterator end() const {
    const Entry* const end = entries_.data() + entries_.size();
    return {end, end};
  }
  size_t size() const { return places_.size(); }

  // Null when there is none. Until the next Add.
  const Value* Find(std::string_view key) const {
    const auto it = places_.find(Wanted{HashOf(key), key, &entries_});
    return it == places_.end() ? nullptr : &entries_[it->place].value;
  }

  // False, and nothing is added, when the key is there.
  bool Add(std::string_view key, Value value) {
    if (entries_.size() == entries_.capacity()) CloseGaps();
    const size_t hash = HashOf(key);
    bool added = false;
    places_.lazy_emplace(Wanted{hash, key, &entries_}, [&](const auto& construct) {
      construct(Place{hash, entries_.size()});
      added = true;
    });
    if (added) entries_.push_back({key, std::move(value)});
    return added;
  }

  // `key` may be that of the value, which may go with this.
  void Remove(std::string_view key) {
    const auto it = places_.find(Wanted{HashOf(key), key, &entries_});
    if (it == places_.end()) return;
    const size_t place = it->place;
    places_.erase(it);
    const Entry gone = std::exchange(entries_[place], Entry());
  }

 private:
  struct Place {
    size_t hash;
    size_t place;
  };
  struct Wanted {
    size_t hash;
    std::string_view key;
    const std::vector<Entry>* entries;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const Place& place) const { return place.hash; }
    size_t operator()(const Wanted& wanted) const { return wanted.hash; }
  };
  struct Same {
    using is_transparent = void;
    bool operator()(const Place& a, const Place& b) const { return a.place == b.place; }
    bool operator()(const Place& place, const Wanted& wanted) const {
      return place.hash == wanted.hash && (*wanted.entries)[place.place].key == wanted.key;
    }
    bool operator()(const Wanted& wanted, const Place& place) const {
      return (*this)(place, wanted);
    }
  };

  static size_t HashOf(std::string_view key) {
    return absl::HashOf(absl::string_view(key.data(), key.size()));
  }

  // Where half of the entries are gaps or more: so each costs its own adding and removing.
  void CloseGaps() {
    if (entries_.size() < 2 * places_.size()) return;
    std::vector<Entry> kept;
    kept.reserve(2 * places_.size());
    places_.clear();
    for (Entry& entry : entries_) {
      if (entry.value == nullptr) continue;
      places_.insert(Place{HashOf(entry.key), kept.size()});
      kept.push_back(std::move(entry));
    }
    entries_ = std::move(kept);
  }

  std::vector<Entry> entries_;
  absl::flat_hash_set<Place, Hash, Same> places_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_ORDERED_INDEX_H_
