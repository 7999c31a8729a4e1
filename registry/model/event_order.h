// Checks that the messages of one subscription follow from each other, as docs/protocol.md
// ("Subscriptions") asks: a snapshot first (or one delta from where the subscriber resumes), whole
// snapshots, deltas that start where the message before ended, no way back within an epoch. Only
// the first message of a stream that resumes may be a snapshot of an earlier revision: the server
// does not know the position.
//
// Example: a reader that stops before it stores something out of order.
//
//   EventOrder order(request.epoch(), request.revision());
//   for each message:
//     absl::Status status = order.Check(message);
//     if (!status.ok()) return SubscribeAgainWithoutPosition(status);
//     Store(message);
//
// Thread safety: none of its own; guard it with what guards the stream.

#ifndef FAILBACK_REGISTRY_MODEL_EVENT_ORDER_H_
#define FAILBACK_REGISTRY_MODEL_EVENT_ORDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "registry/model/event.h"
#include "registry/model/event_part.h"

namespace failback {

class EventOrder {
 public:
  // A stream that starts with a snapshot.
  EventOrder() = default;
  // A stream that resumes after (`epoch`, `revision`), or with both 0 one that does not.
  EventOrder(uint64_t epoch, uint64_t revision)
      : known_(epoch != 0 || revision != 0),
        resuming_(known_),
        epoch_(epoch),
        revision_(revision) {}

  // OK when the part, or the event, may follow, and then it counts as the last. Otherwise ABORTED,
  // which says what is wrong: something was lost between the two, and nothing more of this stream
  // may be used.
  absl::Status Check(const EventPart& part);
  absl::Status Check(const Event& event);

  // Where the stream is: after the last message that was OK. False before the first snapshot.
  bool known() const { return known_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }
  // Parts of a snapshot are still to come.
  bool in_snapshot() const { return in_snapshot_; }

 private:
  // What counts of a part or an event.
  struct Step {
    Event::Kind kind;
    uint64_t epoch;
    uint64_t revision;
    uint64_t base_revision;
    bool more;
  };

  absl::Status Check(const Step& step);

  bool known_ = false;
  bool resuming_ = false;  // the position is the subscriber's word
  bool in_snapshot_ = false;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_EVENT_ORDER_H_
