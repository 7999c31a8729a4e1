#include "registry/model/event_reader.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event_part.h"
#include "registry/model/messages.h"
#include "tests/registry/message_listener.h"
#include "tests/util/instances.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

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

// What the reader makes of a message that it takes; null, and a failure, if it does not.
EventPtr Take(EventReader* reader, const SubscribeResponse& message) {
  const absl::StatusOr<EventPtr> event = reader->Read(message.SerializeAsString());
  EXPECT_TRUE(event.ok()) << event.status();
  return event.value_or(nullptr);
}

// As a first message, alone in its stream.
absl::StatusOr<EventPtr> ReadFirst(const std::string& bytes) { return EventReader().Read(bytes); }

TEST(EventReaderTest, PartsOfASnapshotAreJoined) {
  EventReader reader;
  EXPECT_EQ(Take(&reader, SnapshotPart(3, {"a"}, /*more=*/true)), nullptr);
  EXPECT_EQ(Take(&reader, SnapshotPart(3, {"b"}, /*more=*/true)), nullptr);
  SubscribeResponse last = SnapshotPart(3, {"c"}, /*more=*/false);
  last.set_held(true);
  const EventPtr event = Take(&reader, last);
  ASSERT_NE(event, nullptr);
  EXPECT_TRUE(event->is_snapshot());
  EXPECT_EQ(event->epoch(), 1u);
  EXPECT_EQ(event->revision(), 3u);
  EXPECT_TRUE(event->flags().held);
  EXPECT_EQ(Keys(*event), (std::vector<std::string>{Key("a"), Key("b"), Key("c")}));
  // The next one begins with nothing.
  const EventPtr next = Take(&reader, SnapshotPart(4, {"d"}, /*more=*/false));
  EXPECT_EQ(Keys(*next), std::vector<std::string>{Key("d")});
}

TEST(EventReaderTest, PartsOfABrokenStreamGoWithItsReader) {
  EventReader broken;
  EXPECT_EQ(Take(&broken, SnapshotPart(3, {"a"}, /*more=*/true)), nullptr);
  EventReader again;
  EXPECT_EQ(Take(&again, SnapshotPart(4, {"b"}, /*more=*/false))->instances(), 1u);
}

TEST(EventReaderTest, DeltasAndFlagsAreEvents) {
  EventReader reader(1, 7);
  SubscribeResponse message;
  message.set_epoch(1);
  message.set_revision(9);
  message.mutable_delta()->set_base_revision(7);
  *message.mutable_delta()->add_upserts() = MakeInstance("a");
  *message.mutable_delta()->add_removals() = MakeInstance("b").key();
  const EventPtr delta = Take(&reader, message);
  ASSERT_NE(delta, nullptr);
  EXPECT_TRUE(delta->is_delta());
  EXPECT_EQ(delta->base_revision(), 7u);
  EXPECT_EQ(delta->removals(), std::vector<std::string>{Key("b")});
  EXPECT_EQ(delta->EncodedPart(0), message.SerializeAsString());

  message.clear_delta();
  message.set_stale(true);
  const EventPtr flags = Take(&reader, message);
  ASSERT_NE(flags, nullptr);
  EXPECT_EQ(flags->kind(), Event::Kind::kFlags);
  EXPECT_TRUE(flags->flags().stale);
}

TEST(EventReaderTest, WhatDoesNotFollowIsAGapAndNothingOfItIsRead) {
  EventReader reader(1, 7);
  SubscribeResponse message;
  message.set_epoch(1);
  message.set_revision(9);
  message.mutable_delta()->set_base_revision(8);
  message.mutable_delta()->add_upserts()->set_zone("no key");
  EXPECT_EQ(ReasonOf(reader.Read(message.SerializeAsString()).status()),
            registry::v1::ERROR_REASON_POSITION_LOST);
}

TEST(EventReaderTest, InstancesAreCanonical) {
  ServiceInstance plain = MakeInstance("orders", "a", 80);  // without its namespace
  for (const char* key : {"z", "y", "x"}) (*plain.mutable_metadata())[key] = "1";
  ServiceInstance offline = plain;
  offline.mutable_offline()->set_reason("repair");
  offline.mutable_offline()->mutable_time()->set_seconds(1700000000);
  ServiceInstance service;
  service.mutable_key()->set_service("orders");
  service.set_instance_count(3);
  ServiceInstance later = plain;  // with a field of a later version
  later.GetReflection()->MutableUnknownFields(&later)->AddVarint(77, 1);
  for (const ServiceInstance& instance : {plain, offline, service, later}) {
    SubscribeResponse message;
    *message.mutable_snapshot()->add_instances() = instance;
    const absl::StatusOr<EventPtr> event = ReadFirst(message.SerializeAsString());
    ASSERT_TRUE(event.ok()) << event.status();
    (*event)->ForEachInstance([&](const Blob& read) {
      EXPECT_EQ(read.view(), CanonicalInstance(instance));
      EXPECT_EQ(ParseInstance(read).key().namespace_(), "default");
    });
  }
}

TEST(EventReaderTest, FieldsOfALaterVersionAreLeftOut) {
  SubscribeResponse message = SnapshotPart(3, {"a"}, /*more=*/false);
  for (google::protobuf::Message* const each :
       {static_cast<google::protobuf::Message*>(&message),
        static_cast<google::protobuf::Message*>(message.mutable_snapshot())}) {
    auto* const unknown = each->GetReflection()->MutableUnknownFields(each);
    unknown->AddVarint(100, 1);
    unknown->AddFixed64(101, 1);
    unknown->AddFixed32(102, 1);
    unknown->AddLengthDelimited(103, "later");
  }
  const absl::StatusOr<EventPtr> event = ReadFirst(message.SerializeAsString());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(Keys(**event), std::vector<std::string>{Key("a")});
}

// An error names what is wrong, and where.
TEST(EventReaderTest, WhatNoRegistrySendsIsRefused) {
  const auto refused = [](const SubscribeResponse& message) {
    const absl::Status status = ReadFirst(message.SerializeAsString()).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    return std::string(status.message());
  };
  const auto with = [](const ServiceInstance& instance) {
    SubscribeResponse message = SnapshotPart(3, {"a"}, /*more=*/false);
    *message.mutable_snapshot()->add_instances() = instance;
    return message;
  };
  const std::string at = "the registry's SubscribeResponse is wrong: snapshot.instances[1] ";
  EXPECT_EQ(refused(with(ServiceInstance())), at + "has no key with a service, or a NUL in it");
  ServiceInstance nul = MakeInstance("b");
  nul.mutable_key()->set_instance_id(std::string("b\0c", 3));
  EXPECT_EQ(refused(with(nul)), at + "has no key with a service, or a NUL in it");
  ServiceInstance large = MakeInstance("b");
  large.set_zone(std::string(EventPart::kMaxInstanceBytes, 'x'));
  EXPECT_THAT(refused(with(large)), HasSubstr(at + "is too large: the ServiceInstance has "));
  ServiceInstance many = MakeInstance("b");
  for (size_t i = 0; i < EventPart::kMaxInstanceFields; ++i) {
    (*many.mutable_metadata())[absl::StrCat(i)] = "";
  }
  EXPECT_THAT(refused(with(many)), HasSubstr(at + "is too large: the ServiceInstance has more"));

  const std::string good = with(MakeInstance("b")).SerializeAsString();
  std::string no_text = good;
  no_text[no_text.find("orders")] = '\xff';
  EXPECT_TRUE(absl::IsInternal(ReadFirst(no_text).status()));
  EXPECT_TRUE(absl::IsInternal(ReadFirst(good + good).status())) << "two events";
  EXPECT_TRUE(absl::IsInternal(ReadFirst(good.substr(0, good.size() - 1)).status()));
  EXPECT_TRUE(absl::IsInternal(ReadFirst("\x0b\x0c").status())) << "a group";

  SubscribeResponse delta;
  delta.set_revision(1);
  delta.mutable_delta()->add_removals()->set_instance_id("a");
  EXPECT_EQ(EventReader(0, 1).Read(delta.SerializeAsString()).status().message(),
            "gap in the subscription: a delta of epoch 0 from revision 0 to 1 after epoch 0 "
            "revision 1");
  delta.mutable_delta()->set_base_revision(1);
  EXPECT_EQ(EventReader(0, 1).Read(delta.SerializeAsString()).status().message(),
            "the registry's SubscribeResponse is wrong: delta.removals[0] has no key with a "
            "service, or a NUL in it");
}

// Whatever the bytes are, they are read as a parser reads them, or not at all.
TEST(EventReaderTest, BrokenBytesAreReadAsAParserReadsThem) {
  SeededRandom seeded;
  auto& random = seeded.engine();
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    SubscribeResponse message = SnapshotPart(3, {"a", "b"}, /*more=*/false);
    message.mutable_snapshot()->mutable_instances(0)->mutable_offline()->set_reason("repair");
    (*message.mutable_snapshot()->mutable_instances(1)->mutable_metadata())["k"] = "v";
    std::string bytes = message.SerializeAsString();
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const absl::StatusOr<EventPtr> event = ReadFirst(bytes);
    if (!event.ok() || *event == nullptr) continue;
    ++read;
    ASSERT_TRUE(message.ParseFromString(bytes)) << absl::BytesToHexString(bytes);
    const EventPtr parsed = EventOf(message);
    ASSERT_EQ((*event)->kind(), parsed->kind());
    ASSERT_EQ((*event)->epoch(), parsed->epoch());
    ASSERT_EQ((*event)->revision(), parsed->revision());
    ASSERT_EQ((*event)->flags(), parsed->flags());
    ASSERT_EQ((*event)->EncodedPart(0), parsed->EncodedPart(0)) << absl::BytesToHexString(bytes);
  }
  EXPECT_GT(read, 1000);
}

}  // namespace
}  // namespace failback
