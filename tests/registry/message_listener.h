// Events as the messages that they are on the wire, for tests that look at those.
//
// Thread safety: as NotifyListener; the functions are pure.

#ifndef FAILBACK_TESTS_REGISTRY_MESSAGE_LISTENER_H_
#define FAILBACK_TESTS_REGISTRY_MESSAGE_LISTENER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "registry/model/event_order.h"
#include "registry/model/event_part.h"
#include "registry/registry.h"

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

// The event that a whole message stands for, whether it could follow on another or not.
inline EventPtr EventOf(const SubscribeResponse& message) {
  const SetFlags flags = SetFlags::Of(message);
  std::vector<Blob> instances;
  std::vector<std::string> removals;
  for (const auto& instance : message.snapshot().instances()) {
    instances.emplace_back(CanonicalInstance(instance));
  }
  for (const auto& instance : message.delta().upserts()) {
    instances.emplace_back(CanonicalInstance(instance));
  }
  for (const auto& key : message.delta().removals()) removals.push_back(CanonicalKey(key));
  if (message.has_snapshot()) {
    return Event::Snapshot(message.epoch(), message.revision(), flags, std::move(instances));
  }
  if (!message.has_delta()) return Event::Flags(message.epoch(), message.revision(), flags);
  return Event::Delta(message.epoch(), message.delta().base_revision(), message.revision(), flags,
                      std::move(instances), std::move(removals));
}

// Whether the message follows in its stream.
inline absl::Status CheckOrder(EventOrder* order, const SubscribeResponse& message) {
  const std::string bytes = message.SerializeAsString();
  const absl::StatusOr<EventPart> part = EventPart::Read(bytes);
  return part.ok() ? order->Check(*part) : part.status();
}

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
