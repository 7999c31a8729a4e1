// What a subscriber has been sent of a set, as digests: of each key, that of its content.
//
// It tells whether a change is news to the subscriber. A set never changes: after some changes there
// is another one, and subscribers that have the same share it. So ten thousand subscribers that are
// up to date have one set between them, and a subscriber takes a pointer.
//
//   KnownSet::Changes changes(list);                     // of one event, for all who get it
//   KnownSetPtr after = changes.After(before);           // null: nothing is known
//   if (ContentOf(after, key) == content) …              // no news
//
// Algorithm. A sorted array, 16 bytes an instance, with a sum of all digests. What one set becomes
// by one event is remembered for a few sums, so that it is made once however many have it, also for
// subscribers that came to the same state by different ways. A set is copied for each event that it
// takes in: it should be small (Conflator::kMaxContents). The digests are keyed
// (registry/watch/keyed_hash.h), and their sum mixes each key with its content, so no client can
// make two sets look alike.
//
// Thread safety: a KnownSet is constant. Changes: all methods from any thread.

#ifndef FAILBACK_REGISTRY_WATCH_KNOWN_SET_H_
#define FAILBACK_REGISTRY_WATCH_KNOWN_SET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "retry/mutex.h"

namespace failback {

class KnownSet;
using KnownSetPtr = std::shared_ptr<const KnownSet>;

class KnownSet {
 public:
  // What happens to one key: the digests of the key and of its content, which is 0 when the key
  // goes.
  struct Change {
    uint64_t key;
    uint64_t content;
  };

  // The changes of one event, in order.
  class Changes {
   public:
    explicit Changes(std::vector<Change> list) : list_(std::move(list)) {}

    const std::vector<Change>& list() const { return list_; }

    // As KnownSet::After, and the same object for all who had the same.
    KnownSetPtr After(const KnownSetPtr& before) const;

   private:
    // Those who are up to date have one set, those who joined lately soon the same.
    static constexpr size_t kMostRemembered = 8;

    struct Made {
      uint64_t sum;  // before
      size_t size;
      std::weak_ptr<const KnownSet> after;
    };

    const std::vector<Change> list_;
    mutable Mutex mu_;
    mutable std::vector<Made> made_ ABSL_GUARDED_BY(mu_);  // oldest first
  };

  // What `before` becomes; null: nothing is in it, before or after.
  static KnownSetPtr After(const KnownSetPtr& before, const std::vector<Change>& changes);

  explicit KnownSet(std::vector<Change> sorted);

  // 0 when it is absent.
  uint64_t ContentOf(uint64_t key) const;

  size_t size() const { return entries_.size(); }
  size_t bytes() const { return entries_.capacity() * sizeof(Change); }
  bool operator==(const KnownSet& other) const {
    return sum_ == other.sum_ && size() == other.size();
  }

 private:
  const std::vector<Change> entries_;  // by key, each once, none of content 0
  const uint64_t sum_;
};

inline size_t SizeOf(const KnownSetPtr& set) { return set == nullptr ? 0 : set->size(); }
inline uint64_t ContentOf(const KnownSetPtr& set, uint64_t key) {
  return set == nullptr ? 0 : set->ContentOf(key);
}
inline bool HaveSame(const KnownSetPtr& a, const KnownSetPtr& b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a == b || *a == *b;
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_KNOWN_SET_H_
