// What flows on a stream that carries subscriptions: its client's commands, and what each
// subscription has still to be sent. A Subscribe stream is one with a single subscription.
//
// It is a pure state machine: it makes no call, holds no lock, knows no transport and no time. Who
// owns it (registry/server/event_stream.h, or a simulation) hands in what comes, carries out the
// steps that it asks for, and writes the messages that it gives, one at a time.
//
//   flow.Receive(request);                          // a message of the client
//   while (auto step = flow.NextStep()) …           // subscribe; then flow.Begun(id, stream)
//   flow.OnEvent(id, event, changes);               // from the registry
//   if (!writing) message = flow.Take();            // to the client; empty: nothing to write
//   if (auto end = flow.Finished()) Finish(*end);   // when nothing is being written
//
// Flow. Each subscription is conflated on its own (registry/watch/conflator.h), and they take turns,
// a message or a part of one at a time: one with much to say does not hold up the others, and one
// that nothing has happened to costs nothing. Small messages share one message of the stream.
//
// Bounds. What a client asks for is carried out only as fast as it takes what that brings: a
// subscription begins when less than `begin_below` bytes wait, and no further command is taken
// while some wait. So a client that reads nothing holds little, however much it asks for. What
// happens after they have begun is held up to `own_bytes` for all subscriptions together; one that
// would pass it ends with SUBSCRIBER_SLOW, and may subscribe again from its position.
//
// Thread safety: none of its own.
//
// Invariants:
//  1. Each subscription that was begun by a command has one end, its last item, unless the stream
//     ends before.
//  2. The events of one subscription are in the order of registry/model/event_order.h.
//  3. Beside what `Receive` was given last, at most kMaxCommands commands wait.
//  4. What waits for one subscription is bounded by Conflator, what waits for all by `own_bytes`
//     and kFreeBytes for each.

#ifndef FAILBACK_REGISTRY_WATCH_WATCH_FLOW_H_
#define FAILBACK_REGISTRY_WATCH_WATCH_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "registry/model/event.h"
#include "registry/model/messages.h"
#include "registry/registry.h"
#include "registry/watch/conflator.h"

namespace failback {

class WatchFlow {
 public:
  // Names a subscription, on its stream; not 0.
  using Id = uint64_t;

  enum class Framing {
    kWatch,      // WatchResponses, of which each item says whose it is
    kSubscribe,  // the SubscribeResponses of one subscription, with whose end the stream ends
  };

  struct Limits {
    // Open at once.
    size_t subscriptions = 10000;
    size_t own_bytes = size_t{16} << 20;
    size_t begin_below = size_t{1} << 20;
    // Of one message: it is full with so many items, or when it has so many bytes.
    size_t message_items = 64;
    size_t message_bytes = size_t{64} << 10;
  };

  // Of one WatchRequest.
  static constexpr size_t kMaxCommands = 100;
  static constexpr size_t kMaxRequestBytes = size_t{128} << 10;
  // What one subscription may hold without being counted.
  static constexpr size_t kFreeBytes = 4096;

  WatchFlow(Framing framing, Limits limits) : framing_(framing), limits_(limits) {}
  WatchFlow(const WatchFlow&) = delete;
  WatchFlow& operator=(const WatchFlow&) = delete;

  // --- From the client.

  // Its next message. An error says what is wrong with it: abort the stream with that.
  absl::Status Receive(WatchRequest request);
  // The one subscription of a Subscribe stream, whose client sends no more.
  void ReceiveOnly(SubscribeRequest request);
  // The client sends no more: the stream ends with its last subscription.
  void HalfClose() { half_closed_ = true; }
  // Whether its next message is to be read.
  bool wants_request() const {
    return !half_closed_ && !final_.has_value() && commands_.size() < kMaxCommands;
  }

  // --- To the registry.

  // What is to be done next: subscribe, or else destroy a stream that the client has ended.
  struct Step {
    Id id = 0;
    std::optional<SubscribeRequest> subscribe;
    std::unique_ptr<SubscribeStream> ended;
  };
  // None when no command waits, or the next one has to.
  std::optional<Step> NextStep();
  bool has_step() const;

  // What has become of a subscription: a stream that is to be destroyed, if any, without the lock of
  // whoever guards the flow.
  struct Change {
    std::unique_ptr<SubscribeStream> ended;
    bool conflated = false;  // an event met another that waits
    bool open = false;
  };

  // A step's subscription has begun at the registry, which may have ended it already.
  Change Begun(Id id, std::unique_ptr<SubscribeStream> stream);
  // `changes` are those of the event (Conflator::ChangesOf).
  Change OnEvent(Id id, EventPtr event, Conflator::Changes changes);
  // Sent after what waits. Ignored if it has ended.
  Change OnEnd(Id id, const absl::Status& status);

  // --- To the client.

  // A piece of a message: `head`, and then, unless it is the end of a subscription, a part of an
  // event as Event::EncodedPart gives it.
  struct Piece {
    std::string head;
    EventPtr event;
    size_t part = 0;
    Id id = 0;
    absl::StatusCode end = absl::StatusCode::kOk;
  };
  // The next message, when the one before has been written; empty: there is none.
  std::vector<Piece> Take();

  // --- The stream.

  // Nothing more is begun or taken in; what waits is sent, and then the stream ends.
  void Drain(const absl::Status& status);
  // The stream ends without what waits.
  void Abort(const absl::Status& status);
  // With what the stream is to end now, provided that nothing is being written.
  std::optional<absl::Status> Finished() const;
  // The streams at the registry, to be destroyed when this one has ended: nothing is known after.
  std::vector<std::unique_ptr<SubscribeStream>> TakeStreams();

  // Subscriptions that have begun and whose end has not been taken.
  size_t open() const { return open_; }
  // None is open or asked for.
  bool idle() const { return subscriptions_.empty() && commands_.empty(); }
  // What waits to be sent, and what is held for this stream alone; about.
  size_t waiting_bytes() const { return waiting_bytes_; }
  size_t own_bytes() const { return own_bytes_; }

 private:
  struct Subscription {
    Subscription(Id id, const SubscribeRequest& request)
        : id(id), conflator(request.epoch(), request.revision()) {}

    const Id id;
    Conflator conflator;
    std::unique_ptr<SubscribeStream> stream;
    std::unique_ptr<absl::Status> end;  // set: nothing more is taken in
    size_t waiting_bytes = 0;           // as counted in waiting_bytes_, likewise own_bytes
    size_t own_bytes = 0;
    bool begun = false;
    bool ready = false;  // it is in ready_
  };

  struct Command {
    Id id;
    std::optional<SubscribeRequest> subscribe;  // nullopt: unsubscribe
  };

  Subscription* Find(Id id);
  // `drop`: without what waits.
  void End(Subscription* subscription, const absl::Status& status, bool drop);
  // To be called when what it holds has changed.
  void Count(Subscription* subscription);
  void MakeReady(Subscription* subscription);
  // Adds its end to the message, and forgets it.
  void TakeEnd(Subscription* subscription, std::vector<Piece>* message);
  // Adds its next part, if there is one; how many bytes that is.
  size_t TakePart(Subscription* subscription, std::vector<Piece>* message);
  void Forget(Subscription* subscription);

  const Framing framing_;
  const Limits limits_;
  std::deque<Command> commands_;
  Id last_id_ = 0;
  bool half_closed_ = false;
  bool aborted_ = false;
  std::optional<absl::Status> final_;
  absl::flat_hash_map<Id, std::unique_ptr<Subscription>> subscriptions_;
  std::deque<Subscription*> ready_;       // those with something to send, in turn
  std::vector<Subscription*> in_flight_;  // those of which a part is being written
  size_t open_ = 0;
  size_t ending_ = 0;  // subscriptions whose end is to be taken
  size_t waiting_bytes_ = 0;
  size_t own_bytes_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_WATCH_FLOW_H_
