#include "registry/watch/instance_changes.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "registry/model/canonical.h"
#include "registry/model/instance_view.h"
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

ServiceInstance ParseInstance(const Blob& bytes) {
  ServiceInstance instance;
  instance.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return instance;
}

size_t DeltaBytes(const InstanceChange& change) {
  return change.after ? change.after.size() : KeyBytes(change.before);
}

void SetKey(const Blob& bytes, InstanceKey* key) {
  EncodedInstance encoded;
  if (!ReadInstance(bytes.view(), &encoded)) {
    *key = ParseInstance(bytes).key();
    return;
  }
  key->set_namespace_(std::string(encoded.view.name_space));
  key->set_service(std::string(encoded.view.service));
  key->set_instance_id(std::string(encoded.view.instance_id));
}

std::shared_ptr<const SubscribeResponse> MakeDelta(uint64_t epoch, uint64_t base, uint64_t revision,
                                                   SetFlags flags,
                                                   const std::vector<InstanceChange>& changes) {
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(epoch);
  event->set_revision(revision);
  flags.Put(event.get());
  auto* delta = event->mutable_delta();
  delta->set_base_revision(base);
  for (const InstanceChange& change : changes) {
    if (change.after) {
      delta->add_upserts()->ParseFromArray(change.after.data(),
                                           static_cast<int>(change.after.size()));
    } else {
      SetKey(change.before, delta->add_removals());
    }
  }
  return event;
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
  InstanceKey key;
  for (const InstanceChange& change : changes) {
    SetKey(change.after ? change.after : change.before, &key);
    const auto [it, inserted] = by_key.try_emplace(CanonicalKey(key), change);
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
