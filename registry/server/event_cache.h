// What the server needs of an event, made once however many subscribers get it.
//
// A change of a service that a thousand clients follow is one shared event. Encoding it, and
// digesting it for the conflators, is done for the first of them and found here by the others; so
// it is with the parts of a snapshot, for those who take them at the same time. Entries go with
// their event.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_EVENT_CACHE_H_
#define FAILBACK_REGISTRY_SERVER_EVENT_CACHE_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "grpcpp/support/slice.h"
#include "registry/model/event.h"
#include "registry/watch/conflator.h"
#include "retry/mutex.h"

namespace failback {

class EventCache {
 public:
  Conflator::Changes ChangesOf(const EventPtr& event);

  // A part of an event as it goes on the wire. Copies of a Slice share their memory.
  grpc::Slice BytesOf(const EventPtr& event, size_t part);

 private:
  // Events are delivered to all their subscribers before the next; a few overlap.
  static constexpr size_t kMaxEntries = 8;

  struct Entry {
    std::weak_ptr<const Event> event;
    size_t part = 0;
    Mutex mu;
    Conflator::Changes changes ABSL_GUARDED_BY(mu);
    std::optional<grpc::Slice> bytes ABSL_GUARDED_BY(mu);
  };

  std::shared_ptr<Entry> EntryOf(const EventPtr& event, size_t part);

  Mutex mu_;
  std::vector<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);  // oldest first
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_EVENT_CACHE_H_
