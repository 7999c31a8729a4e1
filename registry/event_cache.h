// What the server needs of an event, made once however many subscribers get it.
//
// A change of a service that a thousand clients follow is one shared message. Serializing it, and
// digesting it for the conflators, is done for the first of them and found here by the others.
// Entries go with their message.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_EVENT_CACHE_H_
#define FAILBACK_REGISTRY_EVENT_CACHE_H_

#include <memory>
#include <vector>

#include "grpcpp/support/byte_buffer.h"
#include "registry/conflator.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {

class EventCache {
 public:
  using Event = std::shared_ptr<const SubscribeResponse>;

  Conflator::Changes ChangesOf(const Event& event);

  // The message as it goes on the wire. Copies of a ByteBuffer share their memory.
  grpc::ByteBuffer BytesOf(const Event& event);

 private:
  // Events are told to all their subscribers before the next; a few overlap.
  static constexpr size_t kMaxEntries = 8;

  struct Entry {
    std::weak_ptr<const SubscribeResponse> event;
    Mutex mu;
    Conflator::Changes changes ABSL_GUARDED_BY(mu);
    std::unique_ptr<grpc::ByteBuffer> bytes ABSL_GUARDED_BY(mu);
  };

  std::shared_ptr<Entry> EntryOf(const Event& event);

  Mutex mu_;
  std::vector<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);  // oldest first
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_EVENT_CACHE_H_
