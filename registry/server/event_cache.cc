#include "registry/server/event_cache.h"

#include <algorithm>
#include <utility>

#include "registry/rpc/byte_buffers.h"

namespace failback {

Conflator::Changes EventCache::ChangesOf(const EventPtr& event) {
  const std::shared_ptr<Entry> entry = EntryOf(event, 0);
  MutexLock lock(&entry->mu);
  if (entry->changes == nullptr) entry->changes = Conflator::ChangesOf(*event);
  return entry->changes;
}

grpc::Slice EventCache::BytesOf(const EventPtr& event, size_t part) {
  const std::shared_ptr<Entry> entry = EntryOf(event, part);
  MutexLock lock(&entry->mu);
  if (!entry->bytes.has_value()) entry->bytes = ToSlice(event->EncodedPart(part));
  return *entry->bytes;
}

std::shared_ptr<EventCache::Entry> EventCache::EntryOf(const EventPtr& event, size_t part) {
  MutexLock lock(&mu_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const auto& entry) { return entry->event.expired(); }),
                 entries_.end());
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if ((*it)->part == part && (*it)->event.lock() == event) return *it;
  }
  if (entries_.size() >= kMaxEntries) entries_.erase(entries_.begin());
  entries_.push_back(std::make_shared<Entry>());
  entries_.back()->event = event;
  entries_.back()->part = part;
  return entries_.back();
}

}  // namespace failback
