// Events for a Conflator, and what a subscriber makes of the messages that it gives.

#ifndef FAILBACK_TESTS_REGISTRY_WATCH_CONFLATOR_EVENTS_H_
#define FAILBACK_TESTS_REGISTRY_WATCH_CONFLATOR_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "registry/model/event_order.h"
#include "registry/watch/conflator.h"
#include "registry/watch/run_pool.h"
#include "tests/registry/message_listener.h"
#include "tests/util/instances.h"

namespace failback {

// Instances by id, told apart by their port.
using Contents = std::map<std::string, uint32_t>;

// A part has any number of instances, unless a test says how many.
constexpr PartLimits kOnePart = {1 << 20, 1 << 30};

inline std::vector<Blob> Blobs(const Contents& contents) {
  std::vector<Blob> instances;
  for (const auto& [id, port] : contents) {
    instances.emplace_back(CanonicalInstance(MakeInstance(id, port)));
  }
  return instances;
}

inline EventPtr Snapshot(uint64_t epoch, uint64_t revision, const Contents& contents,
                         bool stale = false) {
  return Event::Snapshot(epoch, revision, {stale, /*held=*/false}, Blobs(contents), kOnePart);
}

inline EventPtr Delta(uint64_t epoch, uint64_t base, uint64_t revision, const Contents& upserts,
                      const std::vector<std::string>& removals = {}, bool stale = false) {
  std::vector<std::string> keys;
  for (const std::string& id : removals) keys.push_back(CanonicalKey(MakeInstance(id, 0).key()));
  return Event::Delta(epoch, base, revision, {stale, /*held=*/false}, Blobs(upserts),
                      std::move(keys));
}

inline EventPtr Stale(uint64_t epoch, uint64_t revision, bool stale) {
  return Event::Flags(epoch, revision, {stale, /*held=*/false});
}

// Runs of the snapshots that share their lists.
inline RunPool* Runs() {
  static auto* const runs = new RunPool;
  return runs;
}

// As Snapshot, with a shared list, in parts of at most `part` instances.
inline EventPtr InParts(uint64_t epoch, uint64_t revision, const Contents& contents,
                        size_t part = 2, bool stale = false) {
  return Event::SharedSnapshot(epoch, revision, {stale, /*held=*/false},
                               Runs()->Split(Blobs(contents)), {part, 1 << 20});
}

// What a subscriber makes of the messages, as docs/protocol.md tells it to.
struct Subscriber {
  EventOrder order;
  uint64_t epoch = 0;
  bool stale = false;
  Contents contents;
  Contents parts;

  Subscriber() = default;
  Subscriber(uint64_t epoch, uint64_t revision, Contents contents)
      : order(epoch, revision), epoch(epoch), contents(std::move(contents)) {}

  bool operator==(const Subscriber& other) const {
    return epoch == other.epoch && stale == other.stale && contents == other.contents;
  }

  void Apply(const SubscribeResponse& message) {
    const absl::Status status = CheckOrder(&order, message);
    ASSERT_TRUE(status.ok()) << status << "\n" << message.DebugString();
    for (const auto& instance : message.snapshot().instances()) {
      parts[instance.key().instance_id()] = instance.port();
    }
    if (message.has_snapshot() && message.snapshot().more()) return;
    if (message.has_snapshot()) {
      contents = std::exchange(parts, {});
      epoch = message.epoch();
    }
    for (const auto& instance : message.delta().upserts()) {
      contents[instance.key().instance_id()] = instance.port();
    }
    for (const auto& key : message.delta().removals()) contents.erase(key.instance_id());
    stale = message.stale();
  }
};

// The next message, or null.
inline MessagePtr Next(Conflator& conflator) {
  const Conflator::Message next = conflator.Take();
  return next ? PartOf(*next.event, next.part) : nullptr;
}

// Takes all there is.
inline std::vector<MessagePtr> Drain(Conflator& conflator) {
  std::vector<MessagePtr> messages;
  while (MessagePtr message = Next(conflator)) messages.push_back(std::move(message));
  return messages;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_WATCH_CONFLATOR_EVENTS_H_
