// Events as the messages that they are on the wire, for tests that look at those.
//
// Thread safety: as NotifyListener; the functions are pure.

#ifndef FAILBACK_TESTS_REGISTRY_MESSAGE_LISTENER_H_
#define FAILBACK_TESTS_REGISTRY_MESSAGE_LISTENER_H_

#include <cstddef>
#include <memory>

#include "registry/model/event.h"
#include "registry/registry.h"
#include "registry/watch/event_reader.h"

namespace failback {

using MessagePtr = std::shared_ptr<const SubscribeResponse>;

// One part of an event.
inline MessagePtr PartOf(const Event& event, size_t part) {
  auto message = std::make_shared<SubscribeResponse>();
  message->ParseFromString(event.EncodedPart(part));
  return message;
}

// An event as one message, however many parts it has; null when there is none.
inline MessagePtr AsOne(const EventPtr& event) {
  if (event == nullptr) return nullptr;
  auto whole = std::make_shared<SubscribeResponse>();
  for (size_t part = 0; part < event->parts(); ++part) whole->MergeFrom(*PartOf(*event, part));
  if (event->is_snapshot()) whole->mutable_snapshot()->set_more(false);
  return whole;
}

// The event that a whole message stands for.
inline EventPtr EventOf(const SubscribeResponse& message) { return EventReader().Read(message); }

// Receives the parts of each event.
class MessageListener : public NotifyListener {
 public:
  virtual void OnMessage(const MessagePtr& message) = 0;

  void OnEvent(const EventPtr& event) override {
    for (size_t part = 0; part < event->parts(); ++part) OnMessage(PartOf(*event, part));
  }
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_MESSAGE_LISTENER_H_
