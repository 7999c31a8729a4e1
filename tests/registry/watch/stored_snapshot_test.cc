#include "registry/watch/stored_snapshot.h"

#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
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

constexpr StoredSnapshot::PartLimits kLarge = {2000, 256 << 10};

// The instances that the parts say, after checks of what a part must be.
std::vector<std::string> Read(const StoredSnapshot& snapshot, StoredSnapshot::PartLimits limits) {
  std::vector<std::string> read;
  for (size_t part = 0; part < snapshot.parts(); ++part) {
    const std::string bytes = snapshot.EncodedPart(part);
    EXPECT_EQ(bytes.size(), snapshot.PartBytes(part));
    const auto message = snapshot.Part(part);
    EXPECT_EQ(message->SerializeAsString(), bytes) << "as protobuf would spell it";
    EXPECT_EQ(message->epoch(), snapshot.epoch());
    EXPECT_EQ(message->revision(), snapshot.revision());
    EXPECT_TRUE(message->has_snapshot());
    EXPECT_EQ(message->snapshot().more(), part + 1 < snapshot.parts());
    size_t size = 0;
    for (const ServiceInstance& instance : message->snapshot().instances()) {
      read.push_back(CanonicalInstance(instance));
      size += read.back().size();
    }
    const auto count = static_cast<size_t>(message->snapshot().instances_size());
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

TEST(StoredSnapshotTest, NothingIsOneEmptyPart) {
  RunPool pool;
  const StoredSnapshot snapshot(0, 0, SetFlags(), {}, kLarge, &pool);
  EXPECT_EQ(snapshot.parts(), 1u);
  EXPECT_TRUE(Read(snapshot, kLarge).empty());
}

TEST(StoredSnapshotTest, EachPartHasTheFlags) {
  RunPool pool;
  const std::vector<Blob> blobs = {MakeBlob(1, 80), MakeBlob(2, 80)};
  const StoredSnapshot snapshot(1, 7, {/*stale=*/false, /*held=*/true}, blobs, {1, 1000}, &pool);
  ASSERT_EQ(snapshot.parts(), 2u);
  for (size_t part = 0; part < 2; ++part) {
    EXPECT_TRUE(snapshot.Part(part)->held());
    EXPECT_FALSE(snapshot.Part(part)->stale());
    EXPECT_EQ(snapshot.EncodedPart(part).size(), snapshot.PartBytes(part));
  }
}

TEST(StoredSnapshotTest, AnInstanceLargerThanAPartIsAPart) {
  RunPool pool;
  const std::vector<Blob> blobs = {MakeBlob(1, 80, 500), MakeBlob(2, 80), MakeBlob(3, 80, 500)};
  const StoredSnapshot::PartLimits limits = {10, 100};
  const StoredSnapshot snapshot(1, 7, SetFlags(), blobs, limits, &pool);
  EXPECT_EQ(snapshot.parts(), 3u);
  EXPECT_EQ(Read(snapshot, limits), Texts(blobs));
}

// Seeds given back with FAILBACK_TEST_SEED=n; otherwise a fixed range of them.
std::vector<uint64_t> Seeds() {
  if (const char* seed = std::getenv("FAILBACK_TEST_SEED"))
    return {std::strtoull(seed, nullptr, 10)};
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 1; seed <= 300; ++seed) seeds.push_back(seed);
  return seeds;
}

TEST(StoredSnapshotTest, PartsSayWhatThereIsInItsOrder) {
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", seed));
    std::mt19937_64 random(seed);
    std::vector<Blob> blobs;
    for (int i = static_cast<int>(random() % 400); i > 0; --i) {
      blobs.push_back(MakeBlob(i, 1 + static_cast<int>(random() % 60000), random() % 30));
    }
    const StoredSnapshot::PartLimits limits = {1 + random() % 100, 1 + random() % 4000};
    RunPool pool;
    const StoredSnapshot snapshot(1, seed, SetFlags(), blobs, limits, &pool);
    EXPECT_EQ(snapshot.instances(), blobs.size());
    EXPECT_EQ(Read(snapshot, limits), Texts(blobs));
    std::vector<std::string> each;
    snapshot.ForEach([&](std::string_view bytes) { each.emplace_back(bytes); });
    EXPECT_EQ(each, Texts(blobs));
    if (HasFailure()) return;
  }
}

// Where the instances are.
std::set<const char*> Places(const StoredSnapshot& snapshot) {
  std::set<const char*> places;
  snapshot.ForEach([&](std::string_view bytes) { places.insert(bytes.data()); });
  return places;
}

// The same instances in other memory, as entries of a namespace are.
std::vector<Blob> Copy(const std::vector<Blob>& blobs) {
  std::vector<Blob> copy;
  copy.reserve(blobs.size());
  for (const Blob& blob : blobs) copy.emplace_back(blob.view());
  return copy;
}

TEST(StoredSnapshotTest, SnapshotsShareWhatHasNotChangedBetweenThem) {
  RunPool pool;
  std::vector<Blob> blobs = MakeBlobs(20000);
  const StoredSnapshot first(1, 1, SetFlags(), Copy(blobs), kLarge, &pool);
  const size_t runs = pool.size();
  EXPECT_GT(runs, blobs.size() / 100);
  EXPECT_LT(first.bytes(), blobs.size()) << "less than a byte for each instance";

  const std::vector<Blob> unchanged = blobs;
  std::set<const char*> places = Places(first);
  std::vector<std::unique_ptr<StoredSnapshot>> others;
  std::mt19937_64 random(1);
  for (int i = 0; i < 10; ++i) {
    const auto at = blobs.begin() + static_cast<int>(random() % blobs.size());
    if (i % 3 == 0) {
      blobs.erase(at);
    } else if (i % 3 == 1) {
      blobs.insert(at, MakeBlob(100000 + i, 80));
    } else {
      *at = MakeBlob(200000 + i, 81);
    }
    others.push_back(
        std::make_unique<StoredSnapshot>(1, 2 + i, SetFlags(), Copy(blobs), kLarge, &pool));
    EXPECT_EQ(Read(*others.back(), kLarge), Texts(blobs));
    // A run of 32 in the mean, two when the change is between them or tears one in two.
    const size_t before = places.size();
    places.merge(Places(*others.back()));
    EXPECT_LE(places.size(), before + 2 * 256);
  }
  EXPECT_LE(places.size(), 20000u + 10 * 2 * 64);
  EXPECT_LE(pool.size(), runs + 3 * others.size());
  // What was before is shared with those who still have it.
  const StoredSnapshot again(1, 20, SetFlags(), Copy(unchanged), kLarge, &pool);
  EXPECT_EQ(Places(again), Places(first));
}

TEST(StoredSnapshotTest, RunsOfOneDigestAreToldApart) {
  RunPool pool;
  const std::vector<Blob> one = {MakeBlob(1, 80)};
  const std::vector<Blob> other = {MakeBlob(2, 80), MakeBlob(3, 80)};
  const auto first = pool.Intern(7, &one[0], &one[0] + 1);
  const auto second = pool.Intern(7, &other[0], &other[0] + 2);
  const auto third = pool.Intern(7, &other[0], &other[0] + 1);
  EXPECT_EQ(*first, one);
  EXPECT_EQ(*second, other);
  EXPECT_EQ(third->size(), 1u);
}

TEST(StoredSnapshotTest, RunsGoWithTheirLastSnapshot) {
  RunPool pool;
  for (int i = 0; i < 1000; ++i) {
    const StoredSnapshot snapshot(1, 1, SetFlags(), {MakeBlob(i, 80), MakeBlob(i, 81)}, kLarge,
                                  &pool);
    EXPECT_LE(pool.size(), 64u);
  }
}

}  // namespace
}  // namespace failback
