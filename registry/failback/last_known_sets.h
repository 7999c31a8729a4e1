// The last known sets of selectors that no subscriber follows at the moment.
//
// A registry that is unavailable must not leave a new subscriber without instances that this agent
// has known. So a set is kept when its last subscriber leaves, and read from the journal when the
// process starts, until a subscriber comes; bounded by number and by bytes, the one that was kept
// longest goes first: of an owner that has more than half, if there is one, so that no caller
// pushes out what others have left.
//
//   sets.Put(selector, watch.set.Whole(), owner);     // the last subscriber has left
//   if (auto set = sets.Take(selector)) watch.set.Restore(*set);
//
// Thread safety: none of its own. The messages are immutable and may be read without the lock.
//
// Invariants:
// 1. size() and bytes() never exceed the bounds.

#ifndef FAILBACK_REGISTRY_FAILBACK_LAST_KNOWN_SETS_H_
#define FAILBACK_REGISTRY_FAILBACK_LAST_KNOWN_SETS_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace failback {

class LastKnownSets {
 public:
  // A serialized SubscribeResponse with the whole set.
  using Set = std::shared_ptr<const std::string>;

  struct Entry {
    std::string selector;  // canonical
    Set set;
    std::string owner;
  };

  LastKnownSets(size_t max_sets, size_t max_bytes) : max_sets_(max_sets), max_bytes_(max_bytes) {}

  // Keeps `set` as the newest, of `owner`, if that has a name. Returns the selectors whose sets had
  // to go.
  std::vector<std::string> Put(const std::string& selector, std::string set,
                               const std::string& owner = "");

  // The set, which is not kept here any more; null when there is none.
  Set Take(const std::string& selector);

  bool Contains(const std::string& selector) const { return places_.count(selector) > 0; }

  // Oldest first.
  const std::list<Entry>& entries() const { return entries_; }

  size_t size() const { return places_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  static size_t BytesOf(const Entry& entry) { return entry.selector.size() + entry.set->size(); }
  struct Total {
    size_t sets = 0;
    size_t bytes = 0;
  };
  void Erase(std::list<Entry>::iterator entry);
  std::list<Entry>::iterator ToGo();

  const size_t max_sets_;
  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::list<Entry> entries_;
  std::unordered_map<std::string, std::list<Entry>::iterator> places_;
  std::unordered_map<std::string, Total> of_owners_;  // with a name
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_LAST_KNOWN_SETS_H_
