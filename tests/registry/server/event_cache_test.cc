#include "registry/server/event_cache.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/messages.h"

namespace failback {
namespace {

using ChangesHeld = std::weak_ptr<Conflator::Changes::element_type>;

EventPtr MakeEvent(uint64_t revision) {
  ServiceInstance instance;
  instance.mutable_key()->set_service("orders");
  // Long, so that a slice refers to its bytes.
  (*instance.mutable_metadata())["k"] = std::string(1000, 'v');
  return Event::Snapshot(1, revision, SetFlags(), {Blob(CanonicalInstance(instance))});
}

const uint8_t* MemoryOf(const grpc::Slice& bytes) { return bytes.begin(); }

TEST(EventCacheTest, AnEventIsEncodedAndDigestedOnce) {
  EventCache cache;
  const EventPtr event = MakeEvent(1);
  const grpc::Slice first = cache.BytesOf(event, 0);
  const Conflator::Changes changes = cache.ChangesOf(event);
  const EventPtr other = MakeEvent(2);
  EXPECT_NE(MemoryOf(cache.BytesOf(other, 0)), MemoryOf(first));
  EXPECT_EQ(MemoryOf(cache.BytesOf(event, 0)), MemoryOf(first)) << "the same memory for everybody";
  EXPECT_EQ(cache.ChangesOf(event), changes);

  EXPECT_EQ(std::string(first.begin(), first.end()), event->EncodedPart(0));
}

TEST(EventCacheTest, EachPartIsEncodedOnce) {
  EventCache cache;
  std::vector<Blob> instances;
  MakeEvent(1)->ForEachInstance([&](const Blob& instance) { instances.assign(3, instance); });
  const EventPtr event = Event::Snapshot(1, 1, SetFlags(), instances, {1, 1 << 20});
  ASSERT_EQ(event->parts(), 3u);
  std::vector<grpc::Slice> parts;
  for (size_t part = 0; part < 3; ++part) parts.push_back(cache.BytesOf(event, part));
  for (size_t part = 0; part < 3; ++part) {
    EXPECT_EQ(MemoryOf(cache.BytesOf(event, part)), MemoryOf(parts[part]));
  }
  EXPECT_NE(MemoryOf(parts[0]), MemoryOf(parts[1]));
}

TEST(EventCacheTest, WhatBelongsToAnEventGoesWithIt) {
  EventCache cache;
  EventPtr event = MakeEvent(1);
  const ChangesHeld changes = cache.ChangesOf(event);
  EXPECT_FALSE(changes.expired());
  event.reset();
  cache.ChangesOf(MakeEvent(2));
  EXPECT_TRUE(changes.expired());
}

TEST(EventCacheTest, ItIsBoundedWhileAllEventsAreStillOnTheirWay) {
  EventCache cache;
  std::vector<EventPtr> events;
  std::vector<ChangesHeld> changes;
  for (uint64_t revision = 1; revision <= 100; ++revision) {
    events.push_back(MakeEvent(revision));
    changes.push_back(cache.ChangesOf(events.back()));
  }
  size_t kept = 0;
  for (const auto& each : changes) kept += each.expired() ? 0 : 1;
  EXPECT_LE(kept, 8u);
  EXPECT_FALSE(changes.back().expired());
  EXPECT_TRUE(changes.front().expired()) << "the oldest goes first";
}

}  // namespace
}  // namespace failback
