#include "registry/event_cache.h"

#include <algorithm>

#include "grpcpp/impl/codegen/proto_utils.h"

namespace failback {

Conflator::Changes EventCache::ChangesOf(const Event& event) {
  const std::shared_ptr<Entry> entry = EntryOf(event);
  MutexLock lock(&entry->mu);
  if (entry->changes == nullptr) entry->changes = Conflator::ChangesOf(*event);
  return entry->changes;
}

grpc::ByteBuffer EventCache::BytesOf(const Event& event) {
  const std::shared_ptr<Entry> entry = EntryOf(event);
  MutexLock lock(&entry->mu);
  if (entry->bytes == nullptr) {
    entry->bytes = std::make_unique<grpc::ByteBuffer>();
    bool own_buffer = false;
    grpc::GenericSerialize<grpc::ProtoBufferWriter, SubscribeResponse>(*event, entry->bytes.get(),
                                                                       &own_buffer);
  }
  return *entry->bytes;
}

std::shared_ptr<EventCache::Entry> EventCache::EntryOf(const Event& event) {
  MutexLock lock(&mu_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const auto& entry) { return entry->event.expired(); }),
                 entries_.end());
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if ((*it)->event.lock() == event) return *it;
  }
  if (entries_.size() >= kMaxEntries) entries_.erase(entries_.begin());
  entries_.push_back(std::make_shared<Entry>());
  entries_.back()->event = event;
  return entries_.back();
}

}  // namespace failback
