#include "registry/watch/event_reader.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/messages.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

SubscribeResponse SnapshotPart(uint64_t revision, const std::vector<std::string>& ids, bool more) {
  SubscribeResponse message;
  message.set_epoch(1);
  message.set_revision(revision);
  message.mutable_snapshot()->set_more(more);
  for (const std::string& id : ids) {
    *message.mutable_snapshot()->add_instances() = MakeInstance(id);
  }
  return message;
}

std::vector<std::string> Keys(const Event& event) {
  std::vector<std::string> keys;
  event.ForEachInstance([&](const Blob& instance) { keys.push_back(KeyOf(instance)); });
  return keys;
}

std::string Key(const std::string& id) { return CanonicalKey("default", "orders", id); }

TEST(EventReaderTest, PartsOfASnapshotAreJoined) {
  EventReader reader;
  EXPECT_EQ(reader.Read(SnapshotPart(3, {"a"}, /*more=*/true)), nullptr);
  EXPECT_EQ(reader.Read(SnapshotPart(3, {"b"}, /*more=*/true)), nullptr);
  SubscribeResponse last = SnapshotPart(3, {"c"}, /*more=*/false);
  last.set_held(true);
  const EventPtr event = reader.Read(last);
  ASSERT_NE(event, nullptr);
  EXPECT_TRUE(event->is_snapshot());
  EXPECT_EQ(event->epoch(), 1u);
  EXPECT_EQ(event->revision(), 3u);
  EXPECT_TRUE(event->flags().held);
  EXPECT_EQ(Keys(*event), (std::vector<std::string>{Key("a"), Key("b"), Key("c")}));
  // The next one begins with nothing.
  const EventPtr next = reader.Read(SnapshotPart(4, {"d"}, /*more=*/false));
  EXPECT_EQ(Keys(*next), std::vector<std::string>{Key("d")});
}

TEST(EventReaderTest, PartsOfABrokenStreamGoWithItsReader) {
  EventReader broken;
  EXPECT_EQ(broken.Read(SnapshotPart(3, {"a"}, /*more=*/true)), nullptr);
  EXPECT_EQ(EventReader().Read(SnapshotPart(4, {"b"}, /*more=*/false))->instances(), 1u);
}

TEST(EventReaderTest, DeltasAndFlagsAreEvents) {
  EventReader reader;
  SubscribeResponse message;
  message.set_epoch(1);
  message.set_revision(9);
  message.mutable_delta()->set_base_revision(7);
  *message.mutable_delta()->add_upserts() = MakeInstance("a");
  *message.mutable_delta()->add_removals() = MakeInstance("b").key();
  const EventPtr delta = reader.Read(message);
  ASSERT_NE(delta, nullptr);
  EXPECT_TRUE(delta->is_delta());
  EXPECT_EQ(delta->base_revision(), 7u);
  EXPECT_EQ(delta->removals(), std::vector<std::string>{Key("b")});
  EXPECT_EQ(delta->EncodedPart(0), message.SerializeAsString());

  message.clear_delta();
  message.set_stale(true);
  const EventPtr flags = reader.Read(message);
  ASSERT_NE(flags, nullptr);
  EXPECT_EQ(flags->kind(), Event::Kind::kFlags);
  EXPECT_TRUE(flags->flags().stale);
}

TEST(EventReaderTest, InstancesAreCanonical) {
  ServiceInstance instance = MakeInstance("orders", "a", 80);  // without its namespace
  for (const char* key : {"z", "y", "x"}) (*instance.mutable_metadata())[key] = "1";
  SubscribeResponse message;
  *message.mutable_snapshot()->add_instances() = instance;
  EventReader().Read(message)->ForEachInstance([&](const Blob& read) {
    EXPECT_EQ(read.view(), CanonicalInstance(instance));
    EXPECT_EQ(ParseInstance(read).key().namespace_(), "default");
  });
}

}  // namespace
}  // namespace failback
