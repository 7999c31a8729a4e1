#include "registry/model/instance_set.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "tests/util/instances.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using Ports = std::map<std::string, uint32_t>;

std::string Key(const std::string& id) { return CanonicalKey("default", "orders", id); }

Blob MakeBlob(const std::string& id, uint32_t port) {
  return Blob(CanonicalInstance(MakeInstance(id, port)));
}

std::vector<Blob> Blobs(const Ports& ports) {
  std::vector<Blob> blobs;
  for (const auto& [id, port] : ports) blobs.push_back(MakeBlob(id, port));
  return blobs;
}

EventPtr Snapshot(uint64_t revision, const Ports& ports) {
  return Event::Snapshot(1, revision, SetFlags(), Blobs(ports));
}

EventPtr Delta(uint64_t revision, const Ports& upserts, const std::vector<std::string>& removals) {
  std::vector<std::string> keys;
  for (const std::string& id : removals) keys.push_back(Key(id));
  return Event::Delta(1, revision - 1, revision, SetFlags(), Blobs(upserts), std::move(keys));
}

// What the set has, after checks of how it has it.
Ports Read(const InstanceSet& set) {
  Ports ports;
  std::string last;
  for (const auto& run : set.runs()) {
    EXPECT_FALSE(run->empty());
    EXPECT_LE(run->size(), 64u);
    for (const Blob& instance : *run) {
      EXPECT_LT(last, KeyOf(instance));
      last = KeyOf(instance);
      const auto message = ParseInstance(instance);
      ports[message.key().instance_id()] = message.port();
      EXPECT_EQ(set.Find(last), instance);
    }
  }
  EXPECT_EQ(set.size(), ports.size());
  return ports;
}

TEST(InstanceSetTest, EventsAddUp) {
  InstanceSet set;
  InstanceSet::Changes changes;
  ASSERT_TRUE(set.Apply(*Snapshot(7, {{"b", 1}, {"a", 1}}), &changes).ok());
  EXPECT_EQ(changes.upserts.size(), 2u);
  changes = {};
  ASSERT_TRUE(set.Apply(*Delta(8, {{"a", 2}, {"b", 1}, {"c", 1}}, {"b", "x"}), &changes).ok());
  // `b` was taken away and put back as it was; `x` was never there.
  EXPECT_EQ(changes.upserts.size(), 2u);
  EXPECT_TRUE(changes.removals.empty());
  EXPECT_EQ(Read(set), (Ports{{"a", 2}, {"b", 1}, {"c", 1}}));
  changes = {};
  ASSERT_TRUE(set.Apply(*Snapshot(9, {{"a", 2}}), &changes).ok());
  EXPECT_TRUE(changes.upserts.empty());
  EXPECT_EQ(changes.removals, (std::vector<std::string>{Key("b"), Key("c")}));
  EXPECT_FALSE(set.Find(Key("b")));
  ASSERT_TRUE(set.Apply(*Event::Flags(1, 9, {/*stale=*/true, false})).ok());
  EXPECT_TRUE(set.flags().stale);
  EXPECT_EQ(set.revision(), 9u);
}

TEST(InstanceSetTest, AGapChangesNothing) {
  InstanceSet set;
  EXPECT_EQ(ReasonOf(set.Apply(*Delta(8, {{"a", 1}}, {}))),
            registry::v1::ERROR_REASON_POSITION_LOST)
      << "before any snapshot";
  ASSERT_TRUE(set.Apply(*Snapshot(7, {{"a", 1}})).ok());
  for (const EventPtr& event : {Delta(9, {{"a", 2}}, {}), Snapshot(6, {{"a", 2}})}) {
    EXPECT_EQ(ReasonOf(set.Apply(*event)), registry::v1::ERROR_REASON_POSITION_LOST);
    EXPECT_EQ(Read(set), (Ports{{"a", 1}}));
    EXPECT_EQ(set.revision(), 7u);
  }
  set.DropPosition();
  EXPECT_EQ(set.revision(), 0u);
  EXPECT_FALSE(set.Apply(*Delta(8, {{"a", 2}}, {})).ok());
  EXPECT_TRUE(set.Apply(*Snapshot(6, {{"a", 2}})).ok());
}

TEST(InstanceSetTest, AStreamThatResumesMayBeginWithAnEarlierSnapshot) {
  InstanceSet set;
  ASSERT_TRUE(set.Apply(*Snapshot(7, {{"a", 1}})).ok());
  set.Resume();
  ASSERT_TRUE(set.Apply(*Delta(8, {{"a", 2}}, {})).ok());
  set.Resume();
  EXPECT_TRUE(set.Apply(*Snapshot(6, {{"a", 3}})).ok());
  EXPECT_EQ(Read(set), (Ports{{"a", 3}}));
}

TEST(InstanceSetTest, OfSeveralOfOneKeyTheLastCounts) {
  InstanceSet set;
  ASSERT_TRUE(set.Apply(*Event::Snapshot(1, 7, SetFlags(),
                                         {MakeBlob("b", 1), MakeBlob("a", 1), MakeBlob("b", 2)}))
                  .ok());
  EXPECT_EQ(Read(set), (Ports{{"a", 1}, {"b", 2}}));
  ASSERT_TRUE(
      set.Apply(*Event::Delta(1, 7, 8, SetFlags(), {MakeBlob("a", 5), MakeBlob("a", 6)}, {})).ok());
  EXPECT_EQ(Read(set), (Ports{{"a", 6}, {"b", 2}}));
}

TEST(InstanceSetTest, WhatIsRepeatedStaysWhatOthersShare) {
  InstanceSet set;
  ASSERT_TRUE(set.Apply(*Snapshot(7, {{"a", 1}, {"b", 1}})).ok());
  const Blob a = set.Find(Key("a"));
  ASSERT_TRUE(set.Apply(*Snapshot(8, {{"a", 1}, {"b", 2}})).ok());
  EXPECT_EQ(set.Find(Key("a")).data(), a.data());
  ASSERT_TRUE(set.Apply(*Delta(9, {{"a", 1}}, {})).ok());
  EXPECT_EQ(set.Find(Key("a")).data(), a.data());
}

TEST(InstanceSetTest, CopiesAndSnapshotsShareRuns) {
  Ports ports;
  for (uint32_t i = 0; i < 1000; ++i) ports[absl::StrCat("id-", 1000 + i)] = i + 1;
  InstanceSet set;
  ASSERT_TRUE(set.Apply(*Snapshot(7, ports)).ok());
  InstanceSet follower;
  ASSERT_TRUE(
      follower.Apply(*Event::SharedSnapshot(1, 7, SetFlags(), set.runs(), PartLimits())).ok());
  EXPECT_EQ(follower.runs(), set.runs());
  ASSERT_TRUE(follower.Apply(*Delta(8, {{"id-1500", 9}}, {})).ok());
  size_t own = 0;
  for (size_t i = 0; i < set.runs().size(); ++i) own += set.runs()[i] != follower.runs()[i] ? 1 : 0;
  EXPECT_EQ(own, 1u);
  EXPECT_EQ(Read(set), ports) << "the other one is as it was";
}

TEST(InstanceSetTest, IsWhatAMapWouldBe) {
  SeededRandom random;
  for (int round = 0; round < 20; ++round) {
    InstanceSet set;
    Ports model;
    uint64_t revision = 1;
    const int ids = 1 + random.Pick(500);
    const auto id = [&] { return absl::StrCat("id-", random.Pick(ids)); };
    for (int step = 0; step < 30; ++step) {
      const InstanceSet before = set;
      const Ports model_before = model;
      InstanceSet::Changes changes;
      ++revision;
      if (step == 0 || random.Pick(10) == 0) {
        model.clear();
        for (int i = random.Pick(ids + 1); i > 0; --i) model[id()] = 1 + random.Pick(3);
        ASSERT_TRUE(set.Apply(*Snapshot(revision, model), &changes).ok());
      } else {
        Ports upserts;
        std::vector<std::string> removals;
        const int most = random.Pick(3) == 0 ? 200 : 3;
        for (int i = random.Pick(most); i > 0; --i) removals.push_back(id());
        for (int i = random.Pick(most); i > 0; --i) upserts[id()] = 1 + random.Pick(3);
        for (const std::string& gone : removals) model.erase(gone);
        for (const auto& [key, port] : upserts) model[key] = port;
        ASSERT_TRUE(set.Apply(*Delta(revision, upserts, removals), &changes).ok());
      }
      ASSERT_EQ(Read(set), model);
      ASSERT_EQ(Read(before), model_before);
      // The changes are the difference, and make the one of the other.
      const InstanceSet::Changes difference = InstanceSet::Difference(before, set);
      ASSERT_EQ(changes.removals, difference.removals);
      ASSERT_EQ(changes.upserts, difference.upserts);
      InstanceSet made = before;
      made.DropPosition();
      ASSERT_TRUE(made.Apply(*Event::SharedSnapshot(1, 1, SetFlags(), before.runs(), {})).ok());
      ASSERT_TRUE(
          made.Apply(*Event::Delta(1, 1, 2, SetFlags(), changes.upserts, changes.removals)).ok());
      ASSERT_EQ(Read(made), model);
    }
  }
}

}  // namespace
}  // namespace failback
