#include "registry/watch/conflator.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "registry/watch/run_pool.h"
#include "tests/registry/message_listener.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

// Instances by id, told apart by their port.
using Contents = std::map<std::string, uint32_t>;

// A part has any number of instances, unless a test says how many.
constexpr PartLimits kOnePart = {1 << 20, 1 << 30};

std::vector<Blob> Blobs(const Contents& contents) {
  std::vector<Blob> instances;
  for (const auto& [id, port] : contents) {
    instances.emplace_back(CanonicalInstance(MakeInstance(id, port)));
  }
  return instances;
}

EventPtr Snapshot(uint64_t epoch, uint64_t revision, const Contents& contents, bool stale = false) {
  return Event::Snapshot(epoch, revision, {stale, /*held=*/false}, Blobs(contents), kOnePart);
}

EventPtr Delta(uint64_t epoch, uint64_t base, uint64_t revision, const Contents& upserts,
               const std::vector<std::string>& removals = {}, bool stale = false) {
  std::vector<std::string> keys;
  for (const std::string& id : removals) keys.push_back(CanonicalKey(MakeInstance(id, 0).key()));
  return Event::Delta(epoch, base, revision, {stale, /*held=*/false}, Blobs(upserts),
                      std::move(keys));
}

EventPtr Stale(uint64_t epoch, uint64_t revision, bool stale) {
  return Event::Flags(epoch, revision, {stale, /*held=*/false});
}

// Runs of the snapshots that share their lists.
RunPool* Runs() {
  static auto* const runs = new RunPool;
  return runs;
}

// As Snapshot, with a shared list, in parts of at most `part` instances.
EventPtr InParts(uint64_t epoch, uint64_t revision, const Contents& contents, size_t part = 2,
                 bool stale = false) {
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
    const absl::Status status = order.Check(message);
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
MessagePtr Next(Conflator& conflator) {
  const Conflator::Message next = conflator.Take();
  return next ? PartOf(*next.event, next.part) : nullptr;
}

// Takes all there is.
std::vector<MessagePtr> Drain(Conflator& conflator) {
  std::vector<MessagePtr> messages;
  while (MessagePtr message = Next(conflator)) messages.push_back(std::move(message));
  return messages;
}

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
  EXPECT_TRUE(order.Check(*Next(ahead)).ok());
  add(Snapshot(1, 7, {{"a", 1}}));
  add(Delta(1, 7, 8, {{"b", 1}}));
  const std::vector<MessagePtr> events = Drain(ahead);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[0]->has_snapshot());
  for (const MessagePtr& event : events) EXPECT_TRUE(order.Check(*event).ok());
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

// Two keys that somebody has chosen to collide are two keys.
TEST_F(ConflatorTest, KeysThatCollideInAPublicDigestAreNotMerged) {
  // default NUL orders NUL is 15 bytes.
  const std::string one = "-0123456789abcdef0123456789abcdef";
  const std::string other = Colliding(one, 1);
  ASSERT_NE(one, other);
  ASSERT_EQ(Digest64(CanonicalKey("default", "orders", one)),
            Digest64(CanonicalKey("default", "orders", other)));
  const auto snapshot = Conflator::ChangesOf(*Snapshot(1, 1, {{one, 1}, {other, 2}}));
  ASSERT_EQ(snapshot->changes.size(), 2u);
  EXPECT_NE(snapshot->changes[0].key, snapshot->changes[1].key);
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
  ASSERT_EQ(snapshot->changes.size(), 3u);
  ASSERT_EQ(delta->changes.size(), 6u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(snapshot->changes[i].key, delta->changes[i].key) << i;
    EXPECT_EQ(snapshot->changes[i].content, delta->changes[i].content) << i;
    EXPECT_NE(snapshot->changes[i].content, 0u) << i;
    EXPECT_EQ(snapshot->changes[i].key, delta->changes[3 + i].key) << "its removal, " << i;
    EXPECT_EQ(delta->changes[3 + i].content, 0u) << i;
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
    // Each change keeps a list of some 32 that nobody else may have.
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

// Of contents that are not remembered everything is told: it might be news.
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

// Seeds given back with FAILBACK_TEST_SEED=n; otherwise a fixed range of them.
std::vector<uint64_t> Seeds() {
  if (const char* seed = std::getenv("FAILBACK_TEST_SEED"))
    return {std::strtoull(seed, nullptr, 10)};
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 1; seed <= 1000; ++seed) seeds.push_back(seed);
  return seeds;
}

// A source of random events, in order, of which each changes the state.
class Source {
 public:
  explicit Source(uint64_t seed) : random_(seed) {}

  static constexpr int kKeys = 6;
  static constexpr int kPart = 2;
  static constexpr int kMaxParts = kKeys / kPart;

  int Below(int bound) { return static_cast<int>(random_() % bound); }

  EventPtr Next() {
    const int kind = Below(20);
    if (!started_ || kind == 0) {
      if (!started_ || Below(2) == 0) {
        ++epoch_;
        revision_ = 0;
      }
      started_ = true;
      for (int i = Below(4); i > 0; --i) Change();
      ++revision_;
      return Below(2) == 0 ? Snapshot(epoch_, revision_, contents_, stale_)
                           : InParts(epoch_, revision_, contents_, kPart, stale_);
    }
    if (kind <= 2) {
      stale_ = !stale_;
      return Stale(epoch_, revision_, stale_);
    }
    const Contents before = contents_;
    const uint64_t base = revision_;
    do {
      for (int i = 1 + Below(2); i > 0; --i) Change();
    } while (contents_ == before);
    revision_ += 1 + Below(3);
    Contents upserts;
    std::vector<std::string> removals;
    for (const auto& [id, port] : contents_) {
      if (before.count(id) == 0 || before.at(id) != port) upserts[id] = port;
    }
    for (const auto& entry : before) {
      if (contents_.count(entry.first) == 0) removals.push_back(entry.first);
    }
    return Delta(epoch_, base, revision_, upserts, removals, stale_);
  }

  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }
  bool stale() const { return stale_; }
  const Contents& contents() const { return contents_; }

 private:
  // Few keys and ports, so that states come back.
  void Change() {
    const std::string id(1, static_cast<char>('a' + Below(kKeys)));
    if (Below(2) == 0) {
      contents_.erase(id);
    } else {
      contents_[id] = 1 + Below(2);
    }
  }

  std::mt19937_64 random_;
  bool started_ = false;
  bool stale_ = false;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;
  Contents contents_;
};

// Invariants 1 to 3 of the class, on random streams read at random times.
void RunRandom(uint64_t seed, bool resume) {
  Source source(seed);
  Subscriber subscriber;
  Conflator conflator(0, 0);
  if (resume) {
    for (int i = 0; i < 5; ++i) source.Next();
    subscriber = Subscriber(source.epoch(), source.revision(), source.contents());
    subscriber.stale = source.stale();
    conflator = Conflator(source.epoch(), source.revision());
  }
  bool told = false;
  bool knows_all = !resume;
  const auto take = [&](const MessagePtr& event) {
    const Subscriber before = subscriber;
    subscriber.Apply(*event);
    const bool complete = !event->has_snapshot() || !event->snapshot().more();
    if (told && complete && knows_all) {
      EXPECT_FALSE(subscriber == before) << "the same state twice: " << event->DebugString();
    }
    told = told || complete;
    knows_all = knows_all || (event->has_snapshot() && complete);
  };
  for (int step = 0; step < 60; ++step) {
    const absl::Status status = conflator.Add(source.Next());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_LE(conflator.pending(), static_cast<size_t>(2 * Source::kMaxParts + Source::kKeys));
    if (source.Below(8) == 0) {
      if (const MessagePtr next = Next(conflator)) take(next);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  for (const MessagePtr& message : Drain(conflator)) take(message);
  EXPECT_EQ(subscriber.contents, source.contents());
  EXPECT_EQ(subscriber.epoch, source.epoch());
  EXPECT_EQ(subscriber.stale, source.stale());
}

TEST(ConflatorRandomTest, EndsInTheSameStateByValidMessages) {
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", seed));
    RunRandom(seed, /*resume=*/false);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ConflatorRandomTest, AlsoAfterResuming) {
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", seed));
    RunRandom(seed, /*resume=*/true);
    if (testing::Test::HasFailure()) return;
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
