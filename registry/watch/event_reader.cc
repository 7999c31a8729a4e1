#include "registry/watch/event_reader.h"

#include <string>
#include <utility>

#include "registry/model/canonical.h"

namespace failback {

using registry::v1::InstanceKey;
using registry::v1::ServiceInstance;

EventPtr EventReader::Read(const registry::v1::SubscribeResponse& message) {
  const SetFlags flags = SetFlags::Of(message);
  if (message.has_snapshot()) {
    for (const ServiceInstance& instance : message.snapshot().instances()) {
      parts_.emplace_back(CanonicalInstance(instance));
    }
    if (message.snapshot().more()) return nullptr;
    return Event::Snapshot(message.epoch(), message.revision(), flags, std::exchange(parts_, {}));
  }
  if (!message.has_delta()) return Event::Flags(message.epoch(), message.revision(), flags);
  std::vector<Blob> upserts;
  upserts.reserve(message.delta().upserts_size());
  for (const ServiceInstance& instance : message.delta().upserts()) {
    upserts.emplace_back(CanonicalInstance(instance));
  }
  std::vector<std::string> removals;
  removals.reserve(message.delta().removals_size());
  for (const InstanceKey& key : message.delta().removals()) removals.push_back(CanonicalKey(key));
  return Event::Delta(message.epoch(), message.delta().base_revision(), message.revision(), flags,
                      std::move(upserts), std::move(removals));
}

}  // namespace failback
