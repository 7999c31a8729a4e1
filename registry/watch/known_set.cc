#include "registry/watch/known_set.h"

#include <algorithm>

namespace failback {
namespace {

// The finalizer of MurmurHash3 (Appleby): each bit of the input changes half of those of the result.
uint64_t Mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdU;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53U;
  return value ^ value >> 33;
}

uint64_t SumOf(const std::vector<KnownSet::Change>& entries) {
  uint64_t sum = 0;
  // Not linear in the two: contents that have changed places make another sum.
  for (const auto& entry : entries) sum += Mix(entry.key ^ Mix(entry.content));
  return sum;
}

bool ByKey(const KnownSet::Change& a, const KnownSet::Change& b) { return a.key < b.key; }

// By key, the newest of each.
std::vector<KnownSet::Change> Sorted(std::vector<KnownSet::Change> changes) {
  std::stable_sort(changes.begin(), changes.end(), ByKey);
  size_t kept = 0;
  for (const KnownSet::Change& change : changes) {
    if (kept > 0 && changes[kept - 1].key == change.key) --kept;
    changes[kept++] = change;
  }
  changes.resize(kept);
  return changes;
}

}  // namespace

KnownSet::KnownSet(std::vector<Change> sorted)
    : entries_(std::move(sorted)), sum_(SumOf(entries_)) {}

uint64_t KnownSet::ContentOf(uint64_t key) const {
  const auto it = std::lower_bound(entries_.begin(), entries_.end(), Change{key, 0}, ByKey);
  return it == entries_.end() || it->key != key ? 0 : it->content;
}

KnownSetPtr KnownSet::After(const KnownSetPtr& before, const std::vector<Change>& changes) {
  const std::vector<Change> sorted = Sorted(changes);
  static const std::vector<Change> kNone;
  const std::vector<Change>& old = before == nullptr ? kNone : before->entries_;
  std::vector<Change> entries;
  entries.reserve(old.size() + sorted.size());
  auto from = old.begin();
  for (const Change& change : sorted) {
    const auto to = std::lower_bound(from, old.end(), change, ByKey);
    entries.insert(entries.end(), from, to);
    from = to != old.end() && to->key == change.key ? to + 1 : to;
    if (change.content != 0) entries.push_back(change);
  }
  entries.insert(entries.end(), from, old.end());
  if (entries.empty()) return nullptr;
  return std::make_shared<KnownSet>(std::move(entries));
}

KnownSetPtr KnownSet::Changes::After(const KnownSetPtr& before) const {
  const uint64_t sum = before == nullptr ? 0 : before->sum_;
  const size_t size = SizeOf(before);
  MutexLock lock(&mu_);
  for (const Made& made : made_) {
    if (made.sum != sum || made.size != size) continue;
    if (KnownSetPtr after = made.after.lock(); after != nullptr) return after;
  }
  KnownSetPtr after = KnownSet::After(before, list_);
  made_.erase(std::remove_if(made_.begin(), made_.end(),
                             [](const Made& made) { return made.after.expired(); }),
              made_.end());
  if (made_.size() >= kMostRemembered) made_.erase(made_.begin());
  if (after != nullptr) made_.push_back({sum, size, after});
  return after;
}

}  // namespace failback
