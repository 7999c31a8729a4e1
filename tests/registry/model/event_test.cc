#include "registry/model/event.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;

Blob MakeBlob(int id, int port, size_t text = 0) {
  ServiceInstance instance;
  instance.mutable_key()->set_namespace_("default");
  instance.mutable_key()->set_service("orders");
  instance.mutable_key()->set_instance_id(absl::StrCat(id));
  instance.set_port(port);
  if (text > 0) (*instance.mutable_metadata())["text"] = std::string(text, 'x');
  return Blob(CanonicalInstance(instance));
}

std::vector<Blob> MakeBlobs(int count, size_t text = 0) {
  std::vector<Blob> blobs;
  blobs.reserve(count);
  for (int i = 0; i < count; ++i) blobs.push_back(MakeBlob(i, 80, text));
  return blobs;
}

constexpr PartLimits kLarge;

// With a list in runs of 7.
EventPtr Shared(uint64_t revision, const std::vector<Blob>& instances, PartLimits limits) {
  Event::Runs runs;
  for (size_t i = 0; i < instances.size(); i += 7) {
    const size_t end = std::min(i + 7, instances.size());
    runs.push_back(
        std::make_shared<const Event::Run>(instances.begin() + i, instances.begin() + end));
  }
  return Event::SharedSnapshot(1, revision, SetFlags(), std::move(runs), limits);
}

// A part, after checks of what every one must be.
SubscribeResponse PartOf(const Event& event, size_t part) {
  const std::string bytes = event.EncodedPart(part);
  EXPECT_EQ(bytes.size(), event.PartBytes(part));
  SubscribeResponse message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  EXPECT_EQ(message.SerializeAsString(), bytes) << "as protobuf would encode it";
  EXPECT_EQ(message.epoch(), event.epoch());
  EXPECT_EQ(message.revision(), event.revision());
  EXPECT_EQ(SetFlags::Of(message), event.flags());
  return message;
}

// The instances that the parts of a snapshot say.
std::vector<std::string> Read(const Event& snapshot, PartLimits limits) {
  std::vector<std::string> read;
  for (size_t part = 0; part < snapshot.parts(); ++part) {
    const SubscribeResponse message = PartOf(snapshot, part);
    EXPECT_TRUE(message.has_snapshot());
    EXPECT_EQ(message.snapshot().more(), part + 1 < snapshot.parts());
    size_t size = 0;
    for (const ServiceInstance& instance : message.snapshot().instances()) {
      read.push_back(CanonicalInstance(instance));
      size += read.back().size();
    }
    const auto count = static_cast<size_t>(message.snapshot().instances_size());
    EXPECT_LE(count, limits.instances);
    EXPECT_TRUE(size <= limits.bytes || count == 1) << size;
    if (snapshot.parts() > 1) {
      EXPECT_GT(count, 0u);
    }
  }
  return read;
}

std::vector<std::string> Texts(const std::vector<Blob>& blobs) {
  std::vector<std::string> texts;
  for (const Blob& blob : blobs) texts.emplace_back(blob.view());
  return texts;
}

TEST(EventTest, AnEmptySnapshotIsOnePart) {
  for (const EventPtr& event : {Event::SharedSnapshot(0, 0, SetFlags(), {}, kLarge),
                                Event::Snapshot(0, 0, SetFlags(), {})}) {
    EXPECT_TRUE(event->is_snapshot());
    EXPECT_EQ(event->parts(), 1u);
    EXPECT_TRUE(Read(*event, kLarge).empty());
  }
}

TEST(EventTest, EachPartHasTheFlags) {
  const std::vector<Blob> blobs = {MakeBlob(1, 80), MakeBlob(2, 80)};
  const EventPtr snapshot =
      Event::Snapshot(1, 7, {/*stale=*/false, /*held=*/true}, blobs, {1, 1000});
  ASSERT_EQ(snapshot->parts(), 2u);
  for (size_t part = 0; part < 2; ++part) {
    EXPECT_TRUE(PartOf(*snapshot, part).held());
    EXPECT_FALSE(PartOf(*snapshot, part).stale());
  }
}

TEST(EventTest, AnInstanceLargerThanAPartIsAPart) {
  const std::vector<Blob> blobs = {MakeBlob(1, 80, 500), MakeBlob(2, 80), MakeBlob(3, 80, 500)};
  const PartLimits limits = {10, 100};
  const EventPtr snapshot = Shared(7, blobs, limits);
  EXPECT_EQ(snapshot->parts(), 3u);
  EXPECT_EQ(Read(*snapshot, limits), Texts(blobs));
}

TEST(EventTest, ADeltaIsOneMessageThatSaysWhatChanged) {
  const std::vector<Blob> upserts = {MakeBlob(1, 80), MakeBlob(2, 80, 300)};
  const std::string gone = CanonicalKey("prod", "orders", "3");
  const std::string service = CanonicalKey("prod", "orders", "");  // as in a list of services
  const EventPtr delta =
      Event::Delta(5, 1000, 1001, {/*stale=*/true, /*held=*/false}, upserts, {gone, service});
  EXPECT_TRUE(delta->is_delta());
  EXPECT_EQ(delta->instances(), 2u);
  ASSERT_EQ(delta->parts(), 1u);
  const SubscribeResponse message = PartOf(*delta, 0);
  EXPECT_EQ(message.delta().base_revision(), 1000u);
  ASSERT_EQ(message.delta().upserts_size(), 2);
  EXPECT_EQ(CanonicalInstance(message.delta().upserts(1)), upserts[1].view());
  ASSERT_EQ(message.delta().removals_size(), 2);
  EXPECT_EQ(message.delta().removals(0).namespace_(), "prod");
  EXPECT_EQ(CanonicalKey(message.delta().removals(0)), gone);
  EXPECT_EQ(CanonicalKey(message.delta().removals(1)), service);
  EXPECT_TRUE(message.stale());
}

TEST(EventTest, AnEmptyDeltaAndAChangeOfFlagsDiffer) {
  const EventPtr delta = Event::Delta(1, 0, 7, SetFlags(), {}, {});
  EXPECT_TRUE(PartOf(*delta, 0).has_delta());
  const EventPtr flags = Event::Flags(1, 7, {/*stale=*/false, /*held=*/true});
  const SubscribeResponse message = PartOf(*flags, 0);
  EXPECT_EQ(message.event_case(), SubscribeResponse::EVENT_NOT_SET);
  EXPECT_TRUE(message.held());
  EXPECT_TRUE(StaleAt(1, 7)->flags().stale);
}

TEST(EventTest, TheKeyOfAnInstanceIsRead) {
  ServiceInstance instance;
  instance.mutable_key()->set_service("orders");
  instance.mutable_key()->set_instance_id(std::string(300, 'i'));
  instance.mutable_offline()->set_reason("repair");
  ServiceInstance service;
  service.mutable_key()->set_namespace_("prod");
  service.mutable_key()->set_service("orders");
  service.set_instance_count(3);
  for (const ServiceInstance& each : {instance, service, ServiceInstance()}) {
    EXPECT_EQ(KeyOf(Blob(CanonicalInstance(each))), CanonicalKey(each.key()));
    EXPECT_EQ(KeyOf(Blob(each.SerializeAsString())), CanonicalKey(each.key()));
  }
  // Fields of a later version, in the key and after it.
  std::string bytes = CanonicalInstance(service);
  bytes[1] += 2;
  bytes.insert(2 + static_cast<size_t>(bytes[1]) - 2, "\x78\x01");
  EXPECT_EQ(KeyOf(Blob(bytes)), CanonicalKey(service.key()));
}

TEST(EventTest, ADeltaIsBetterAsASnapshotWhenItIsLongBesideItsSet) {
  const auto delta = [](int count, size_t text) {
    return Event::Delta(1, 1, 2, SetFlags(), MakeBlobs(count, text), {});
  };
  EXPECT_FALSE(IsBetterAsSnapshot(*delta(100, 100), 100)) << "short";
  EXPECT_TRUE(IsBetterAsSnapshot(*delta(100, 3000), 100));
  EXPECT_FALSE(IsBetterAsSnapshot(*delta(100, 3000), 1000)) << "the set is much longer";
  EXPECT_TRUE(IsBetterAsSnapshot(*delta(100, 12000), 1000)) << "too long for a message";
}

// Seeds given back with FAILBACK_TEST_SEED=n; otherwise a fixed range of them.
std::vector<uint64_t> Seeds() {
  if (const char* seed = std::getenv("FAILBACK_TEST_SEED"))
    return {std::strtoull(seed, nullptr, 10)};
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 1; seed <= 300; ++seed) seeds.push_back(seed);
  return seeds;
}

TEST(EventTest, PartsSayWhatThereIsInItsOrder) {
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", seed));
    std::mt19937_64 random(seed);
    std::vector<Blob> blobs;
    for (int i = static_cast<int>(random() % 400); i > 0; --i) {
      blobs.push_back(MakeBlob(i, 1 + static_cast<int>(random() % 60000), random() % 30));
    }
    const PartLimits limits = {1 + random() % 100, 1 + random() % 4000};
    for (const EventPtr& snapshot :
         {Shared(seed, blobs, limits), Event::Snapshot(1, seed, SetFlags(), blobs, limits)}) {
      EXPECT_EQ(snapshot->instances(), blobs.size());
      EXPECT_EQ(Read(*snapshot, limits), Texts(blobs));
      std::vector<std::string> each;
      snapshot->ForEachInstance([&](const Blob& blob) { each.emplace_back(blob.view()); });
      EXPECT_EQ(each, Texts(blobs));
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace failback
