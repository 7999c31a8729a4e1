#include "registry/watch/conflator.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "tests/registry/message_listener.h"
#include "tests/registry/watch/conflator_events.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

class ConflatorTest : public testing::Test {
 protected:
  void Add(EventPtr event) {
    const absl::Status status = conflator_.Add(std::move(event));
    ASSERT_TRUE(status.ok()) << status;
  }

  // The one message that waits.
  SubscribeResponse TakeOnly() {
    const std::vector<MessagePtr> events = Drain(conflator_);
    EXPECT_EQ(events.size(), 1u);
    return events.size() == 1 ? *events[0] : SubscribeResponse();
  }

  Conflator conflator_{0, 0};
};

TEST_F(ConflatorTest, AFastSubscriberGetsTheSharedEvents) {
  const std::vector<EventPtr> events = {Snapshot(1, 7, {{"a", 1}}), Delta(1, 7, 9, {{"b", 1}}),
                                        Stale(1, 9, true), Delta(1, 9, 12, {}, {"a"})};
  for (const EventPtr& event : events) {
    Add(event);
    EXPECT_EQ(conflator_.Take().event, event);
    EXPECT_EQ(Next(conflator_), nullptr);
  }
}

// The position that a subscriber gives may be one that the source does not know, such as a later
// one.
TEST_F(ConflatorTest, ASubscriberThatIsAheadOfItsSourceGetsASnapshot) {
  Conflator ahead(1, 12);
  EventOrder order(1, 12);
  const auto add = [&](EventPtr event) {
    const absl::Status status = ahead.Add(std::move(event));
    EXPECT_TRUE(status.ok()) << status;
  };
  add(Stale(1, 12, true));
  EXPECT_TRUE(CheckOrder(&order, *Next(ahead)).ok());
  add(Snapshot(1, 7, {{"a", 1}}));
  add(Delta(1, 7, 8, {{"b", 1}}));
  const std::vector<MessagePtr> events = Drain(ahead);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[0]->has_snapshot());
  for (const MessagePtr& event : events) EXPECT_TRUE(CheckOrder(&order, *event).ok());
  EXPECT_FALSE(ahead.Add(Snapshot(1, 7, {})).ok()) << "it has a set now";
}

TEST_F(ConflatorTest, DeltasAreMergedPerKeyFromTheLastBase) {
  Add(Snapshot(1, 7, {{"a", 1}, {"b", 1}}));
  Drain(conflator_);
  Add(Delta(1, 7, 8, {{"a", 2}}));
  Add(Delta(1, 8, 9, {{"c", 1}}, {"b"}));
  Add(Delta(1, 9, 12, {{"a", 3}}));
  EXPECT_EQ(conflator_.pending(), 3u);
  const SubscribeResponse merged = TakeOnly();
  EXPECT_EQ(merged.delta().base_revision(), 7u);
  EXPECT_EQ(merged.revision(), 12u);
  ASSERT_EQ(merged.delta().upserts_size(), 2);
  EXPECT_EQ(merged.delta().removals_size(), 1);
  for (const auto& instance : merged.delta().upserts()) {
    EXPECT_EQ(instance.port(), instance.key().instance_id() == "a" ? 3u : 1u);
  }
}

TEST_F(ConflatorTest, WhatTurnedBackIsNotTold) {
  Add(Snapshot(1, 7, {{"a", 1}}));
  Drain(conflator_);
  Add(Delta(1, 7, 8, {{"b", 1}}));
  Add(Delta(1, 8, 9, {{"a", 2}}, {"b"}));
  Add(Delta(1, 9, 10, {{"a", 1}}));
  EXPECT_EQ(conflator_.pending(), 0u);
  EXPECT_EQ(Next(conflator_), nullptr);
  // The next starts where the subscriber is.
  Add(Delta(1, 10, 11, {{"c", 1}}));
  const SubscribeResponse next = TakeOnly();
  EXPECT_EQ(next.delta().base_revision(), 7u);
  EXPECT_EQ(next.revision(), 11u);
}

TEST_F(ConflatorTest, ANewSnapshotTakesThePlaceOfWhatWaits) {
  Add(Snapshot(1, 7, {{"a", 1}}));
  Drain(conflator_);
  Add(Delta(1, 7, 8, {{"b", 1}}));
  Add(Snapshot(2, 1, {{"c", 1}}));
  Add(Delta(2, 1, 2, {{"d", 1}}));
  const std::vector<MessagePtr> events = Drain(conflator_);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]->snapshot().instances(0).key().instance_id(), "c");
  EXPECT_EQ(events[1]->delta().base_revision(), 1u);
}

TEST_F(ConflatorTest, ASnapshotOfWhatTheSubscriberHasIsNotTold) {
  Add(Snapshot(1, 7, {{"a", 1}}));
  Drain(conflator_);
  Add(Delta(1, 7, 8, {{"b", 1}}));
  Add(Snapshot(1, 9, {{"a", 1}}));
  EXPECT_EQ(Next(conflator_), nullptr);
  // A new epoch is news, whatever is in it.
  Add(Snapshot(2, 1, {{"a", 1}}));
  EXPECT_EQ(TakeOnly().epoch(), 2u);
}

TEST_F(ConflatorTest, ASnapshotOfTheSameThatHasBecomeStaleIsTold) {
  Add(Snapshot(1, 7, {{"a", 1}}));
  TakeOnly();
  Add(Snapshot(1, 7, {{"a", 1}}, /*stale=*/true));
  EXPECT_TRUE(TakeOnly().stale());
  Add(Snapshot(1, 8, {{"a", 1}}, /*stale=*/false));
  EXPECT_FALSE(TakeOnly().stale());
}

TEST_F(ConflatorTest, PartsGoThroughOneByOneAndAreNotTornApart) {
  Add(InParts(1, 7, {{"a", 1}, {"b", 1}, {"c", 1}}, /*part=*/1));
  ASSERT_NE(Next(conflator_), nullptr);
  Add(Delta(1, 7, 8, {}, {"a"}));
  Add(Snapshot(2, 1, {{"z", 1}}));
  const std::vector<MessagePtr> events = Drain(conflator_);
  ASSERT_EQ(events.size(), 3u) << "the two other parts, then the new epoch";
  EXPECT_FALSE(events[1]->snapshot().more());
  EXPECT_EQ(events[2]->epoch(), 2u);
}

TEST_F(ConflatorTest, ASnapshotIsTakenPartByPart) {
  Add(InParts(1, 7, {{"a", 1}, {"b", 1}, {"c", 1}}));
  EXPECT_EQ(conflator_.pending(), 2u);
  const Conflator::Message first = conflator_.Take();
  ASSERT_TRUE(first);
  EXPECT_EQ(first.part, 0u);
  // Told after the snapshot, though it comes before the last part is taken; and what turns back is
  // known from the snapshot.
  Add(Delta(1, 7, 8, {{"d", 1}}, {"a"}));
  Add(Delta(1, 8, 9, {{"a", 1}}));
  const std::vector<MessagePtr> events = Drain(conflator_);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]->snapshot().instances(0).key().instance_id(), "c");
  EXPECT_FALSE(events[0]->snapshot().more());
  EXPECT_EQ(events[1]->delta().base_revision(), 7u);
  EXPECT_EQ(events[1]->delta().upserts_size(), 1);
  EXPECT_EQ(events[1]->delta().removals_size(), 0);
}

// The 8 bytes that make Digest64 forget a difference that the 8 bytes before them made.
std::string Colliding(const std::string& bytes, size_t at) {
  const auto mix = [](uint64_t word) {
    word *= 0xc6a4a7935bd1e995u;
    word ^= word >> 47;
    return word * 0xc6a4a7935bd1e995u;
  };
  const auto unmix = [](uint64_t word) {
    constexpr uint64_t kInverse = 0x5f7a0ea7e59b19bdu;  // of the multiplier
    word *= kInverse;
    word ^= word >> 47;
    return word * kInverse;
  };
  std::string other = bytes;
  for (const size_t place : {at, at + 8}) {
    uint64_t word;
    std::memcpy(&word, &other[place], sizeof(word));
    word = unmix(mix(word) ^ (uint64_t{1} << 63));
    std::memcpy(&other[place], &word, sizeof(word));
  }
  return other;
}

// Two keys that a client has chosen to collide are two keys.
TEST_F(ConflatorTest, KeysThatCollideInAPublicDigestAreNotMerged) {
  // default NUL orders NUL is 15 bytes.
  const std::string one = "-0123456789abcdef0123456789abcdef";
  const std::string other = Colliding(one, 1);
  ASSERT_NE(one, other);
  ASSERT_EQ(Digest64(CanonicalKey("default", "orders", one)),
            Digest64(CanonicalKey("default", "orders", other)));
  const auto snapshot = Conflator::ChangesOf(*Snapshot(1, 1, {{one, 1}, {other, 2}}));
  ASSERT_EQ(snapshot->changes.list().size(), 2u);
  EXPECT_NE(snapshot->changes.list()[0].key, snapshot->changes.list()[1].key);
}

TEST_F(ConflatorTest, ASnapshotIsDigestedAsADeltaIs) {
  ServiceInstance instance = MakeInstance("a", 1);
  (*instance.mutable_metadata())["zone"] = "b";
  (*instance.mutable_metadata())["tier"] = "gold";
  ServiceInstance marked = instance;
  marked.mutable_key()->set_instance_id("b");
  marked.mutable_offline()->set_reason("repair");
  ServiceInstance entry;
  entry.mutable_key()->set_service("orders");
  entry.set_instance_count(3);
  std::vector<Blob> instances;
  std::vector<std::string> keys;
  for (const auto& each : {instance, marked, entry}) {
    instances.emplace_back(CanonicalInstance(each));
    keys.push_back(CanonicalKey(each.key()));
  }
  const auto snapshot = Conflator::ChangesOf(*Event::Snapshot(1, 7, SetFlags(), instances));
  const auto delta = Conflator::ChangesOf(*Event::Delta(1, 7, 8, SetFlags(), instances, keys));
  ASSERT_EQ(snapshot->changes.list().size(), 3u);
  ASSERT_EQ(delta->changes.list().size(), 6u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(snapshot->changes.list()[i].key, delta->changes.list()[i].key) << i;
    EXPECT_EQ(snapshot->changes.list()[i].content, delta->changes.list()[i].content) << i;
    EXPECT_NE(snapshot->changes.list()[i].content, 0u) << i;
    EXPECT_EQ(snapshot->changes.list()[i].key, delta->changes.list()[3 + i].key)
        << "its removal, " << i;
    EXPECT_EQ(delta->changes.list()[3 + i].content, 0u) << i;
  }
}

TEST_F(ConflatorTest, PartsOfWhatTheSubscriberHasAreNotSent) {
  Add(Snapshot(1, 7, {{"a", 1}, {"b", 1}, {"c", 1}}));
  EXPECT_EQ(Drain(conflator_).size(), 1u);
  Add(InParts(1, 9, {{"a", 1}, {"b", 1}, {"c", 1}}));
  EXPECT_EQ(Next(conflator_), nullptr);
  Add(InParts(1, 9, {{"a", 1}, {"b", 1}}));
  EXPECT_EQ(TakeOnly().snapshot().instances_size(), 2);
}

// One who stops in the middle of a large snapshot holds neither its messages nor the changes that
// come, however they come.
TEST_F(ConflatorTest, AStoppedSubscriberOfALargeSetIsBounded) {
  Contents large;
  for (int i = 0; i < 100000; ++i) large[absl::StrCat("i", i)] = 1;
  for (const int changes : {1, 100, 5000}) {
    Conflator conflator(0, 0);
    ASSERT_TRUE(conflator.Add(InParts(1, 1, large, 2000)).ok());
    ASSERT_TRUE(conflator.Take());
    EXPECT_LT(conflator.bytes(), Conflator::kMaxBytes / 4);
    absl::Status status;
    uint64_t revision = 1;
    auto next = large.begin();
    while (status.ok()) {
      Contents upserts;
      for (int i = 0; i < changes; ++i, ++next) upserts[next->first] = 2;
      EXPECT_LE(conflator.bytes(), Conflator::kMaxBytes);
      status = conflator.Add(Delta(1, revision, revision + 1, upserts));
      ++revision;
      ASSERT_LT(revision, 20000u);
    }
    EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_SUBSCRIBER_SLOW) << status;
    // Each change keeps a list of some 32 that is its alone.
    if (changes <= 100) {
      EXPECT_LT(revision * changes * 32 * sizeof(Blob), Conflator::kMaxBytes);
    }
  }
}

// What is being written and what waits, together.
TEST_F(ConflatorTest, WhatIsBeingWrittenCounts) {
  constexpr size_t kText = 200;
  const auto change = [&](uint64_t revision, int from, int count) {
    std::vector<Blob> upserts;
    for (int i = from; i < from + count; ++i) {
      ServiceInstance instance =
          MakeInstance(absl::StrCat("i", i), static_cast<uint32_t>(revision));
      (*instance.mutable_metadata())["text"] = std::string(kText, 'x');
      upserts.emplace_back(CanonicalInstance(instance));
    }
    return Event::Delta(1, revision - 1, revision, SetFlags(), std::move(upserts), {});
  };
  Add(Snapshot(1, 1, {}));
  ASSERT_NE(Next(conflator_), nullptr);
  for (uint64_t revision = 2; revision < 22; ++revision) {
    Add(change(revision, static_cast<int>(revision) * 100, 100));
  }
  const MessagePtr written = Next(conflator_);
  ASSERT_EQ(written->delta().upserts_size(), 2000);
  size_t waiting = 0;
  absl::Status status;
  for (uint64_t revision = 22; status.ok(); ++revision) {
    status = conflator_.Add(change(revision, static_cast<int>(revision) * 100, 100));
    if (status.ok()) waiting += 100 * kText;
    ASSERT_LT(revision, 1000u);
  }
  EXPECT_LT(written->ByteSizeLong() + waiting, Conflator::kMaxBytes);
  EXPECT_GT(waiting, 100000u);
}

TEST_F(ConflatorTest, StaleIsPartOfTheState) {
  Add(Snapshot(1, 7, {{"a", 1}}));
  Drain(conflator_);
  Add(Stale(1, 7, true));
  Add(Stale(1, 7, false));
  EXPECT_EQ(Next(conflator_), nullptr);
  Add(Delta(1, 7, 8, {{"b", 1}}));
  Add(Delta(1, 8, 9, {}, {"b"}, /*stale=*/true));
  const SubscribeResponse only_stale = TakeOnly();
  EXPECT_TRUE(only_stale.stale());
  EXPECT_FALSE(only_stale.has_delta());
  EXPECT_EQ(only_stale.revision(), 7u);
}

TEST_F(ConflatorTest, HeldIsPartOfTheState) {
  const auto held = [](bool is_held) { return Event::Flags(1, 7, {/*stale=*/false, is_held}); };
  Add(Snapshot(1, 7, {{"a", 1}}));
  Drain(conflator_);
  Add(held(true));
  EXPECT_TRUE(TakeOnly().held());
  Add(held(false));
  Add(held(true));
  EXPECT_EQ(Next(conflator_), nullptr);
  Add(held(false));
  const SubscribeResponse none = TakeOnly();
  EXPECT_FALSE(none.held());
  EXPECT_FALSE(none.has_delta());
}

TEST_F(ConflatorTest, AResumedSubscriberIsToldItsPositionEvenIfNothingChanged) {
  Conflator resumed(1, 7);
  ASSERT_TRUE(resumed.Add(Delta(1, 7, 7, {})).ok());
  EXPECT_NE(Next(resumed), nullptr);
  ASSERT_TRUE(resumed.Add(Delta(1, 7, 8, {{"a", 1}})).ok());
  ASSERT_TRUE(resumed.Add(Delta(1, 8, 9, {{"b", 1}})).ok());
  const std::vector<MessagePtr> events = Drain(resumed);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]->delta().upserts_size(), 2);
}

TEST_F(ConflatorTest, ASourceThatSkipsIsNotHidden) {
  Add(Snapshot(1, 7, {{"a", 1}}));
  EXPECT_EQ(ReasonOf(conflator_.Add(Delta(1, 8, 9, {{"b", 1}}))),
            registry::v1::ERROR_REASON_POSITION_LOST);
}

// What a source says between leaving an epoch and coming back to it is never told to one who was
// slow: to him it would just go back.
TEST_F(ConflatorTest, ASourceThatGoesBackByWayOfAnotherEpochIsNotFollowed) {
  Conflator conflator(1, 3);
  ASSERT_TRUE(conflator.Add(Snapshot(2, 1, {{"a", 1}})).ok());
  EXPECT_EQ(ReasonOf(conflator.Add(Snapshot(1, 2, {}))), registry::v1::ERROR_REASON_POSITION_LOST);
  Conflator forward(1, 3);
  ASSERT_TRUE(forward.Add(Snapshot(2, 1, {{"a", 1}})).ok());
  EXPECT_TRUE(forward.Add(Snapshot(1, 3, {})).ok());
  EXPECT_TRUE(forward.Take());
}

TEST_F(ConflatorTest, WhatIsUnknownIsBounded) {
  Conflator resumed(1, 1);
  absl::Status status;
  uint64_t revision = 1;
  while (status.ok() && revision < 100000) {
    EXPECT_LE(resumed.bytes(), Conflator::kMaxBytes);
    status = resumed.Add(Delta(1, revision, revision + 1, {}, {absl::StrCat("gone-", revision)}));
    ++revision;
  }
  EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_SUBSCRIBER_SLOW);
}

TEST_F(ConflatorTest, MemoryIsBoundedHoweverLargeTheSet) {
  const auto large = [](int revision, int size) {
    std::vector<Blob> instances;
    for (int i = 0; i < size; ++i) {
      ServiceInstance instance;
      instance.mutable_key()->set_instance_id(absl::StrCat("i", i));
      instance.set_port(revision);
      (*instance.mutable_metadata())["text"] = std::string(150, 'x');
      instances.emplace_back(CanonicalInstance(instance));
    }
    if (revision == 1) return Event::Snapshot(1, 1, SetFlags(), std::move(instances));
    return Event::Delta(1, revision - 1, revision, SetFlags(), std::move(instances), {});
  };
  // Takes the parts of a snapshot; the last one is being written.
  const auto take_snapshot = [](Conflator& conflator) {
    MessagePtr part;
    do {
      part = Next(conflator);
      ASSERT_NE(part, nullptr);
    } while (part->snapshot().more());
  };
  // A slow subscriber of a set of this size is conflated for ever ...
  Conflator slow(0, 0);
  ASSERT_TRUE(slow.Add(large(1, 2000)).ok());
  take_snapshot(slow);
  for (int revision = 2; revision < 20; ++revision) {
    ASSERT_EQ(slow.Add(large(revision, 2000)), absl::OkStatus());
    EXPECT_LE(slow.bytes(), Conflator::kMaxBytes);
  }
  EXPECT_EQ(Next(slow)->delta().upserts_size(), 2000);
  // ... and of a much larger one is sent away.
  Conflator stopped(0, 0);
  ASSERT_TRUE(stopped.Add(large(1, 20000)).ok());
  Drain(stopped);
  EXPECT_LT(stopped.bytes(), Conflator::kMaxBytes / 100) << "its contents are not remembered";
  ASSERT_TRUE(stopped.Add(large(2, 1)).ok());
  ASSERT_NE(Next(stopped), nullptr);
  EXPECT_EQ(ReasonOf(stopped.Add(large(3, 20000))), registry::v1::ERROR_REASON_SUBSCRIBER_SLOW);
  // One who has read all takes it as it came.
  Conflator reader(0, 0);
  ASSERT_TRUE(reader.Add(large(1, 20000)).ok());
  EXPECT_GT(Drain(reader).size(), 10u);
  ASSERT_TRUE(reader.Add(large(2, 20000)).ok());
  EXPECT_EQ(Next(reader)->delta().upserts_size(), 20000);
}

// Of contents that are not remembered everything is reported: it might be news.
TEST_F(ConflatorTest, NothingIsLeftOutOfALargeSet) {
  Contents large;
  for (size_t i = 0; i <= Conflator::kMaxContents; ++i) large[absl::StrCat("i", i)] = 1;
  enum How { kAtOnce, kInTwoSteps };
  const auto told = [&](How how) {
    Conflator conflator(0, 0);
    uint64_t revision = 1;
    EXPECT_TRUE(conflator.Add(Snapshot(1, revision, large)).ok());
    EXPECT_NE(Next(conflator), nullptr);
    if (how == kInTwoSteps) {
      // Becomes as large while it is followed.
      EXPECT_TRUE(conflator.Add(Snapshot(1, ++revision, {{"i1", 1}, {"i5", 1}})).ok());
      EXPECT_NE(Next(conflator), nullptr);
      Contents more = large;
      more.erase("i1");
      more.erase("i5");
      EXPECT_TRUE(conflator.Add(Delta(1, revision, revision + 1, more)).ok());
      ++revision;
      EXPECT_NE(Next(conflator), nullptr);
    }
    EXPECT_TRUE(conflator.Add(Delta(1, revision, revision + 1, {{"i1", 2}})).ok());
    EXPECT_TRUE(conflator.Add(Delta(1, revision + 1, revision + 2, {}, {"i5"})).ok());
    return *Next(conflator);
  };
  for (const How how : {kAtOnce, kInTwoSteps}) {
    const SubscribeResponse message = told(how);
    EXPECT_EQ(message.delta().upserts_size(), 1);
    ASSERT_EQ(message.delta().removals_size(), 1) << how;
    EXPECT_EQ(message.delta().removals(0).instance_id(), "i5");
  }
}

TEST(ConflatorStaleTest, WordsOfStalenessAloneDoNotMoveTheRevision) {
  Conflator conflator(2, 7);
  for (const bool stale : {true, false}) {
    ASSERT_TRUE(conflator.Add(Stale(0, 0, stale)).ok());
  }
  const MessagePtr next = Next(conflator);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->epoch(), 2);
  EXPECT_EQ(next->revision(), 7);
  EXPECT_EQ(Next(conflator), nullptr);
}

}  // namespace
}  // namespace failback
