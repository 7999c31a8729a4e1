// Makes events of the messages of a subscription as they come from the wire.
//
// The parts of a snapshot are joined here: nothing above a client knows that there are parts. The
// instances are canonical from here on. What came of a snapshot whose last part is missing goes
// with the reader: there is one for each stream.
//
// Example: one stream.
//
//   EventOrder order(request.epoch(), request.revision());
//   EventReader reader;
//   for each message:
//     absl::Status status = order.Check(message);
//     if (!status.ok()) return SubscribeAgainWithoutPosition(status);
//     if (EventPtr event = reader.Read(message)) listener->OnEvent(event);
//
// Thread safety: none of its own; guard it with what guards the stream.

#ifndef FAILBACK_REGISTRY_WATCH_EVENT_READER_H_
#define FAILBACK_REGISTRY_WATCH_EVENT_READER_H_

#include <vector>

#include "failback/registry/v1/registry.pb.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"

namespace failback {

class EventReader {
 public:
  // The event that `message`, the next one of the stream, completes; null while parts of a snapshot
  // are still to come.
  EventPtr Read(const registry::v1::SubscribeResponse& message);

 private:
  std::vector<Blob> parts_;  // of a snapshot that is not complete
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_EVENT_READER_H_
