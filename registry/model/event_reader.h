// Makes events of the messages of a subscription as they come from the wire.
//
// Each message is checked before anything is made of it: that it is one, and that it follows on the
// one before (registry/model/event_order.h). The parts of a snapshot are joined here: nothing above
// a client knows that there are parts. What came of a snapshot whose last part is missing goes with
// the reader: there is one for each stream.
//
// Example: one stream.
//
//   EventReader reader(request.epoch(), request.revision());
//   for each message:
//     absl::StatusOr<EventPtr> event = reader.Read(message);
//     if (!event.ok()) return SubscribeAgain(event.status());
//     if (*event != nullptr) listener->OnEvent(*event);
//
// Thread safety: none of its own; guard it with what guards the stream.

#ifndef FAILBACK_REGISTRY_MODEL_EVENT_READER_H_
#define FAILBACK_REGISTRY_MODEL_EVENT_READER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/event_order.h"

namespace failback {

class EventReader {
 public:
  // A stream that starts with a snapshot.
  EventReader() = default;
  // A stream that resumes after (`epoch`, `revision`), or with both 0 one that does not.
  EventReader(uint64_t epoch, uint64_t revision) : order_(epoch, revision) {}

  // The event that `message`, the bytes of the next SubscribeResponse, completes; null while parts
  // of a snapshot are still to come. After an error nothing more of the stream may be used: ABORTED
  // (POSITION_LOST) if something was lost, INTERNAL if it is no such message.
  absl::StatusOr<EventPtr> Read(std::string_view message);

 private:
  EventOrder order_;
  std::vector<Blob> parts_;  // of a snapshot that is not complete
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_EVENT_READER_H_
