#include "registry/server/event_cache.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace failback {
namespace {

using ChangesHeld = std::weak_ptr<Conflator::Changes::element_type>;

Conflator::Event MakeEvent(uint64_t revision) {
  SubscribeResponse event;
  event.set_epoch(1);
  event.set_revision(revision);
  auto* const instance = event.mutable_snapshot()->add_instances();
  instance->mutable_key()->set_service("orders");
  // Long, so that a slice refers to its bytes.
  (*instance->mutable_metadata())["k"] = std::string(1000, 'v');
  return std::make_shared<const SubscribeResponse>(std::move(event));
}

const uint8_t* MemoryOf(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  EXPECT_TRUE(bytes.TrySingleSlice(&slice).ok());
  return slice.begin();
}

TEST(EventCacheTest, AnEventIsEncodedAndDigestedOnce) {
  EventCache cache;
  const Conflator::Event event = MakeEvent(1);
  const grpc::ByteBuffer first = cache.BytesOf({event, nullptr});
  const Conflator::Changes changes = cache.ChangesOf(event);
  const Conflator::Event other = MakeEvent(2);
  EXPECT_NE(MemoryOf(cache.BytesOf({other, nullptr})), MemoryOf(first));
  EXPECT_EQ(MemoryOf(cache.BytesOf({event, nullptr})), MemoryOf(first))
      << "the same memory for everybody";
  EXPECT_EQ(cache.ChangesOf(event), changes);

  grpc::Slice slice;
  ASSERT_TRUE(first.TrySingleSlice(&slice).ok());
  EXPECT_EQ(std::string(slice.begin(), slice.end()), event->SerializeAsString());
}

TEST(EventCacheTest, WhatBelongsToAnEventGoesWithIt) {
  EventCache cache;
  Conflator::Event event = MakeEvent(1);
  const ChangesHeld changes = cache.ChangesOf(event);
  EXPECT_FALSE(changes.expired());
  event.reset();
  cache.ChangesOf(MakeEvent(2));
  EXPECT_TRUE(changes.expired());
}

TEST(EventCacheTest, ItIsBoundedWhileAllEventsAreStillOnTheirWay) {
  EventCache cache;
  std::vector<Conflator::Event> events;
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
