#include "registry/watch/run_pool.h"

#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "registry/model/messages.h"

namespace failback {
namespace {

Blob MakeBlob(int id, int port) {
  ServiceInstance instance;
  instance.mutable_key()->set_namespace_("default");
  instance.mutable_key()->set_service("orders");
  instance.mutable_key()->set_instance_id(absl::StrCat(id));
  instance.set_port(port);
  return Blob(CanonicalInstance(instance));
}

std::vector<Blob> MakeBlobs(int count) {
  std::vector<Blob> blobs;
  blobs.reserve(count);
  for (int i = 0; i < count; ++i) blobs.push_back(MakeBlob(i, 80));
  return blobs;
}

std::vector<std::string> Texts(const std::vector<Blob>& blobs) {
  std::vector<std::string> texts;
  for (const Blob& blob : blobs) texts.emplace_back(blob.view());
  return texts;
}

std::vector<std::string> Texts(const Event& snapshot) {
  std::vector<std::string> texts;
  snapshot.ForEachInstance([&](const Blob& blob) { texts.emplace_back(blob.view()); });
  return texts;
}

EventPtr Snapshot(uint64_t revision, const std::vector<Blob>& instances, RunPool* pool) {
  return Event::SharedSnapshot(1, revision, SetFlags(), pool->Split(instances), PartLimits());
}

// Where the instances are.
std::set<const char*> Places(const Event& snapshot) {
  std::set<const char*> places;
  snapshot.ForEachInstance([&](const Blob& blob) { places.insert(blob.data()); });
  return places;
}

// The same instances in other memory, as entries of a namespace are.
std::vector<Blob> Copy(const std::vector<Blob>& blobs) {
  std::vector<Blob> copy;
  copy.reserve(blobs.size());
  for (const Blob& blob : blobs) copy.emplace_back(blob.view());
  return copy;
}

TEST(RunPoolTest, SnapshotsShareWhatHasNotChangedBetweenThem) {
  RunPool pool;
  std::vector<Blob> blobs = MakeBlobs(20000);
  const EventPtr first = Snapshot(1, Copy(blobs), &pool);
  const size_t runs = pool.size();
  EXPECT_GT(runs, blobs.size() / 100);
  EXPECT_LT(first->bytes(), blobs.size()) << "less than a byte for each instance";

  const std::vector<Blob> unchanged = blobs;
  std::set<const char*> places = Places(*first);
  std::vector<EventPtr> others;
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
    others.push_back(Snapshot(2 + i, Copy(blobs), &pool));
    EXPECT_EQ(Texts(*others.back()), Texts(blobs));
    // A run of 32 in the mean, two when the change is between them or tears one in two.
    const size_t before = places.size();
    places.merge(Places(*others.back()));
    EXPECT_LE(places.size(), before + 2 * 256);
  }
  EXPECT_LE(places.size(), 20000u + 10 * 2 * 64);
  EXPECT_LE(pool.size(), runs + 3 * others.size());
  // What was before is shared with those who still have it.
  const EventPtr again = Snapshot(20, Copy(unchanged), &pool);
  EXPECT_EQ(Places(*again), Places(*first));
}

TEST(RunPoolTest, RunsOfOneDigestAreToldApart) {
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

TEST(RunPoolTest, RunsGoWithTheirLastSnapshot) {
  RunPool pool;
  for (int i = 0; i < 1000; ++i) {
    const EventPtr snapshot = Snapshot(1, {MakeBlob(i, 80), MakeBlob(i, 81)}, &pool);
    EXPECT_LE(pool.size(), 64u);
  }
}

}  // namespace
}  // namespace failback
