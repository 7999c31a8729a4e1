#include "registry/server/event_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "grpcpp/impl/codegen/proto_utils.h"
#include "registry/watch/lazy_snapshot.h"

namespace failback {
namespace {

// A slice of these bytes, which are not copied.
grpc::Slice SliceOf(std::string bytes) {
  auto* const owner = new std::string(std::move(bytes));
  return grpc::Slice(
      owner->data(), owner->size(), [](void* string) { delete static_cast<std::string*>(string); },
      owner);
}

grpc::ByteBuffer Serialize(const Conflator::Message& message) {
  if (message.snapshot != nullptr) {
    const grpc::Slice slice = SliceOf(message.snapshot->EncodedPart(message.part));
    return grpc::ByteBuffer(&slice, 1);
  }
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  grpc::GenericSerialize<grpc::ProtoBufferWriter, SubscribeResponse>(*message.event, &bytes,
                                                                     &own_buffer);
  return bytes;
}

}  // namespace

template <typename Source>
Conflator::Changes EventCache::Changes(const std::shared_ptr<const Source>& source) {
  const std::shared_ptr<Entry> entry = EntryOf(source, 0);
  MutexLock lock(&entry->mu);
  if (entry->changes == nullptr) entry->changes = Conflator::ChangesOf(*source);
  return entry->changes;
}

Conflator::Changes EventCache::ChangesOf(const Conflator::Event& event) { return Changes(event); }

Conflator::Changes EventCache::ChangesOf(const Conflator::Snapshot& snapshot) {
  return Changes(snapshot);
}

grpc::ByteBuffer EventCache::BytesOf(const Conflator::Message& message) {
  const std::shared_ptr<Entry> entry = message.snapshot != nullptr
                                           ? EntryOf(message.snapshot, message.part)
                                           : EntryOf(message.event, 0);
  MutexLock lock(&entry->mu);
  if (entry->bytes == nullptr)
    entry->bytes = std::make_unique<grpc::ByteBuffer>(Serialize(message));
  return *entry->bytes;
}

std::shared_ptr<EventCache::Entry> EventCache::EntryOf(const std::shared_ptr<const void>& source,
                                                       size_t part) {
  MutexLock lock(&mu_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const auto& entry) { return entry->source.expired(); }),
                 entries_.end());
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if ((*it)->part == part && (*it)->source.lock() == source) return *it;
  }
  if (entries_.size() >= kMaxEntries) entries_.erase(entries_.begin());
  entries_.push_back(std::make_shared<Entry>());
  entries_.back()->source = source;
  entries_.back()->part = part;
  return entries_.back();
}

}  // namespace failback
