#include "registry/watch/instance_changes.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "registry/model/selector.h"

namespace failback {
namespace {

// What the key of a removal takes: the first field of an instance's canonical bytes.
size_t KeyBytes(const Blob& instance) {
  const std::string_view bytes = instance.view();
  if (bytes.size() < 3) return bytes.size();
  const size_t first = static_cast<uint8_t>(bytes[1]);
  return first < 0x80 ? first : (first & 0x7f) + (size_t{static_cast<uint8_t>(bytes[2])} << 7);
}

// What a follower with this filter sees of a change; both sides null when nothing.
InstanceChange Seen(const Selector& selector, const InstanceChange& change) {
  const auto seen = [&](const Blob& bytes) {
    return bytes && SelectorMatches(selector, ParseInstance(bytes)) ? bytes : Blob();
  };
  return {seen(change.before), seen(change.after)};
}

}  // namespace

size_t DeltaBytes(const InstanceChange& change) {
  return change.after ? change.after.size() : KeyBytes(change.before);
}

EventPtr MakeDelta(uint64_t epoch, uint64_t base, uint64_t revision, SetFlags flags,
                   const std::vector<InstanceChange>& changes) {
  std::vector<Blob> upserts;
  std::vector<std::string> removals;
  upserts.reserve(changes.size());
  for (const InstanceChange& change : changes) {
    if (change.after) {
      upserts.push_back(change.after);
    } else {
      removals.push_back(KeyOf(change.before));
    }
  }
  return Event::Delta(epoch, base, revision, flags, std::move(upserts), std::move(removals));
}

std::vector<Blob> Matching(const Selector& selector, const std::vector<Blob>& instances) {
  std::vector<Blob> matching;
  for (const Blob& instance : instances) {
    if (SelectorMatches(selector, ParseInstance(instance))) matching.push_back(instance);
  }
  return matching;
}

std::vector<InstanceChange> NetChanges(const std::vector<InstanceChange>& changes) {
  std::map<std::string, InstanceChange> by_key;
  for (const InstanceChange& change : changes) {
    const auto [it, inserted] =
        by_key.try_emplace(KeyOf(change.after ? change.after : change.before), change);
    if (!inserted) it->second.after = change.after;
  }
  std::vector<InstanceChange> net;
  for (auto& [key, change] : by_key) {
    if (change.before != change.after) net.push_back(std::move(change));
  }
  return net;
}

std::vector<InstanceChange> Conflate(const std::vector<InstanceChange>& changes,
                                     const Selector& selector) {
  std::vector<InstanceChange> net;
  for (const InstanceChange& change : NetChanges(changes)) {
    InstanceChange seen = Seen(selector, change);
    if (seen.before != seen.after) net.push_back(std::move(seen));
  }
  return net;
}

bool IsLong(const std::vector<InstanceChange>& changes, size_t bytes) {
  size_t sum = 0;
  for (const InstanceChange& change : changes) {
    sum += DeltaBytes(change);
    if (sum > bytes) return true;
  }
  return false;
}

}  // namespace failback
