#include "registry/watch/watched_set.h"

#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

// What a subscriber makes of the events, checking the contract as it goes.
class Subscriber {
 public:
  void Receive(const MessagePtr& event) {
    ASSERT_NE(event, nullptr);
    auto next = state_;
    if (event->has_snapshot()) {
      next.clear();
      for (const auto& i : event->snapshot().instances()) next[i.key().instance_id()] = i.port();
      EXPECT_TRUE(!known_ || event->epoch() != epoch_) << "a snapshot where a delta would do";
    } else if (event->has_delta()) {
      ASSERT_TRUE(known_);
      EXPECT_EQ(event->epoch(), epoch_);
      EXPECT_EQ(event->delta().base_revision(), revision_);
      for (const auto& key : event->delta().removals()) {
        EXPECT_EQ(next.erase(key.instance_id()), 1) << "removed what was not there";
      }
      for (const auto& i : event->delta().upserts()) next[i.key().instance_id()] = i.port();
    }
    if (known_ && event->epoch() == epoch_) {
      EXPECT_GE(event->revision(), revision_) << "an older state after a newer";
    }
    EXPECT_TRUE(!known_ || next != state_ || event->stale() != stale_ || event->epoch() != epoch_)
        << "the same state twice in a row";
    known_ = true;
    epoch_ = event->epoch();
    revision_ = event->revision();
    stale_ = event->stale();
    state_ = next;
  }
  const std::map<std::string, uint32_t>& state() const { return state_; }
  bool stale() const { return stale_; }

 private:
  bool known_ = false, stale_ = false;
  uint64_t epoch_ = 0, revision_ = 0;
  std::map<std::string, uint32_t> state_;
};

// A set of messages.
class TestedSet : public WatchedSet {
 public:
  using WatchedSet::WatchedSet;
  MessagePtr Apply(const SubscribeResponse& message) {
    return AsOne(WatchedSet::Apply(*EventOf(message)));
  }
  MessagePtr MarkStale() { return AsOne(WatchedSet::MarkStale()); }
  MessagePtr MarkFresh() { return AsOne(WatchedSet::MarkFresh()); }
  MessagePtr Release() { return AsOne(WatchedSet::Release()); }
  MessagePtr Current() { return AsOne(WatchedSet::Current()); }
};

// About `bytes` long.
ServiceInstance LongInstance(const std::string& id, size_t bytes) {
  ServiceInstance instance = MakeInstance(id);
  (*instance.mutable_metadata())["text"] = std::string(bytes, 'x');
  return instance;
}

TEST(WatchedSetTest, NothingIsKnownBeforeTheFirstSnapshot) {
  TestedSet set(true);
  EXPECT_FALSE(set.known());
  EXPECT_EQ(set.Current(), nullptr);
  EXPECT_EQ(set.MarkStale(), nullptr);
  EXPECT_EQ(set.Apply(DeltaEvent(0, 1, {MakeInstance("a")})), nullptr);
  EXPECT_TRUE(set.gap());
}

TEST(WatchedSetTest, AnEmptyFirstSnapshotIsToldAtOnce) {
  TestedSet set(true);
  const auto event = set.Apply(SnapshotEvent(3, {}));
  ASSERT_NE(event, nullptr);
  EXPECT_TRUE(event->has_snapshot());
  EXPECT_EQ(event->revision(), 3);
}

TEST(WatchedSetTest, ASnapshotOfTheSameEpochIsToldAsADelta) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(3, {MakeInstance("a"), MakeInstance("b")}));
  const auto event = set.Apply(SnapshotEvent(9, {MakeInstance("b", 9), MakeInstance("c")}));
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->delta().base_revision(), 3);
  EXPECT_EQ(event->delta().upserts_size(), 2);
  EXPECT_EQ(event->delta().removals_size(), 1);
  EXPECT_EQ(set.Apply(SnapshotEvent(12, {MakeInstance("b", 9), MakeInstance("c")})), nullptr);
  EXPECT_EQ(set.revision(), 12) << "the position moves on";
}

TEST(WatchedSetTest, ANewEpochIsToldAsASnapshotEvenIfNothingChanged) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(30, {MakeInstance("a")}));
  const auto event = set.Apply(SnapshotEvent(1, {MakeInstance("a")}, 2));
  ASSERT_NE(event, nullptr);
  EXPECT_TRUE(event->has_snapshot());
  EXPECT_EQ(event->epoch(), 2);
  EXPECT_EQ(event->revision(), 1);
}

TEST(WatchedSetTest, AnOlderSnapshotOfTheSameEpochIsAGap) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(30, {MakeInstance("a")}));
  EXPECT_EQ(set.Apply(SnapshotEvent(29, {MakeInstance("b")})), nullptr);
  EXPECT_TRUE(set.gap());
  EXPECT_TRUE(set.instances().Find(std::string("default\0orders\0a", 16)));
  // The next stream says where the subscribers are: from nowhere it could begin like this again.
  EXPECT_EQ(set.epoch(), 1);
  EXPECT_EQ(set.revision(), 30);
  EXPECT_EQ(set.Apply(DeltaEvent(30, 30, {})), nullptr);
  EXPECT_FALSE(set.gap());
}

TEST(WatchedSetTest, ADeltaWithAnotherBaseOrEpochIsAGap) {
  for (const auto& bad :
       {DeltaEvent(29, 31, {MakeInstance("b")}), DeltaEvent(31, 32, {MakeInstance("b")}),
        DeltaEvent(30, 31, {MakeInstance("b")}, {}, 2), DeltaEvent(30, 29, {MakeInstance("b")})}) {
    TestedSet set(true);
    set.Apply(SnapshotEvent(30, {MakeInstance("a")}));
    EXPECT_EQ(set.Apply(bad), nullptr) << bad.ShortDebugString();
    EXPECT_TRUE(set.gap()) << bad.ShortDebugString();
    EXPECT_EQ(set.instances().size(), 1);
    EXPECT_NE(set.Apply(SnapshotEvent(32, {MakeInstance("b")})), nullptr);
    EXPECT_FALSE(set.gap());
  }
}

TEST(WatchedSetTest, ADeltaThatChangesNothingIsNotTold) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(1, {MakeInstance("a")}));
  EXPECT_EQ(set.Apply(DeltaEvent(1, 2, {MakeInstance("a")}, {"x"})), nullptr);
  const auto event = set.Apply(DeltaEvent(2, 3, {MakeInstance("b")}));
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->delta().base_revision(), 1) << "of what the subscribers were told";
}

TEST(WatchedSetTest, StaleIsPartOfTheState) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(1, {MakeInstance("a")}));
  const auto stale = set.MarkStale();
  ASSERT_NE(stale, nullptr);
  EXPECT_TRUE(stale->stale());
  EXPECT_FALSE(stale->has_delta() || stale->has_snapshot());
  EXPECT_EQ(set.MarkStale(), nullptr);
  const auto fresh = set.Apply(DeltaEvent(1, 1, {}));
  ASSERT_NE(fresh, nullptr);
  EXPECT_FALSE(fresh->stale());
  EXPECT_FALSE(fresh->has_delta());
  EXPECT_EQ(fresh->revision(), 1);
}

// The stream has gone on to 7 without a change when it breaks, and comes back empty at 6.
TEST(WatchedSetTest, WhileAnEmptySnapshotIsHeld_ThePositionStays) {
  TestedSet set(true);
  Subscriber subscriber;
  subscriber.Receive(set.Apply(SnapshotEvent(5, {MakeInstance("a")})));
  EXPECT_EQ(set.Apply(DeltaEvent(5, 7, {})), nullptr);
  const MessagePtr stale = set.Apply(SnapshotEvent(6, {}));
  subscriber.Receive(stale);
  EXPECT_EQ(stale->revision(), 5);
  const MessagePtr released = set.Release();
  ASSERT_NE(released, nullptr);
  subscriber.Receive(released);
  EXPECT_EQ(released->revision(), 6);
}

// Who resumes from revision 3, which another agent has sent it, is not to be sent revision 1.
TEST(WatchedSetTest, ADeltaThatChangesNothing_MovesThePositionOnWithTheNextFlag) {
  TestedSet set(true);
  Subscriber subscriber;
  subscriber.Receive(set.Apply(SnapshotEvent(1, {MakeInstance("a")})));
  subscriber.Receive(set.MarkStale());
  const MessagePtr fresh = set.Apply(DeltaEvent(1, 4, {}));
  subscriber.Receive(fresh);
  EXPECT_FALSE(fresh->stale());
  EXPECT_EQ(fresh->revision(), 4);
  EXPECT_EQ(set.Current()->revision(), 4);

  EXPECT_EQ(set.Apply(DeltaEvent(4, 5, {})), nullptr);
  const MessagePtr stale = set.MarkStale();
  subscriber.Receive(stale);
  EXPECT_EQ(stale->revision(), 5);
  EXPECT_EQ(set.Current()->revision(), 5);
}

TEST(WatchedSetTest, AnUpstreamAgentsStalenessIsPassedOn) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(1, {MakeInstance("a")}));
  SubscribeResponse stale;
  stale.set_epoch(1);
  stale.set_revision(1);
  stale.set_stale(true);
  ASSERT_NE(set.Apply(stale), nullptr);
  EXPECT_TRUE(set.stale());
  EXPECT_EQ(set.Apply(stale), nullptr);
}

TEST(WatchedSetTest, ThatSessionsAreHeldIsPassedOn) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(1, {MakeInstance("a")}));
  SubscribeResponse flags;
  flags.set_epoch(1);
  flags.set_revision(1);
  flags.set_held(true);
  const auto held = set.Apply(flags);
  ASSERT_NE(held, nullptr);
  EXPECT_TRUE(held->held());
  EXPECT_FALSE(held->stale() || held->has_delta() || held->has_snapshot());
  EXPECT_EQ(set.Apply(flags), nullptr);
  EXPECT_TRUE(set.flags().held);
  // It is the last known, as the rest is, while the registry is unavailable.
  const auto stale = set.MarkStale();
  ASSERT_NE(stale, nullptr);
  EXPECT_TRUE(stale->stale());
  EXPECT_TRUE(stale->held());
  flags.set_held(false);
  const auto fresh = set.Apply(flags);
  ASSERT_NE(fresh, nullptr);
  EXPECT_FALSE(fresh->stale() || fresh->held());
}

TEST(WatchedSetTest, AnEmptySnapshotIsHeldUntilReleased) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(5, {MakeInstance("a")}));
  const auto held = set.Apply(SnapshotEvent(1, {}, 2));
  ASSERT_NE(held, nullptr);
  EXPECT_TRUE(held->stale());
  EXPECT_TRUE(set.holding());
  EXPECT_EQ(set.instances().size(), 1);
  EXPECT_EQ(set.revision(), 1) << "the stream goes on from the snapshot that is held";
  // Neither a word that changes nothing nor the connection says that it is so.
  SubscribeResponse same;
  same.set_epoch(2);
  same.set_revision(1);
  EXPECT_EQ(set.Apply(same), nullptr);
  EXPECT_EQ(set.MarkFresh(), nullptr);
  EXPECT_TRUE(set.holding());
  EXPECT_TRUE(set.stale());
  const auto released = set.Release();
  ASSERT_NE(released, nullptr);
  EXPECT_FALSE(released->stale());
  EXPECT_EQ(released->epoch(), 2);
  EXPECT_EQ(set.instances().size(), 0);
  EXPECT_EQ(set.Release(), nullptr);
}

TEST(WatchedSetTest, AGapEndsTheHoldAndNothingIsToldOfWhatWasLost) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(5, {MakeInstance("a")}));
  set.Apply(SnapshotEvent(1, {}, 2));
  EXPECT_EQ(set.Apply(DeltaEvent(7, 8, {MakeInstance("b")}, {}, 2)), nullptr);
  EXPECT_TRUE(set.gap());
  EXPECT_FALSE(set.holding());
  EXPECT_EQ(set.Release(), nullptr);
  SubscribeResponse same;
  same.set_epoch(2);
  same.set_revision(8);
  EXPECT_EQ(set.Apply(same), nullptr) << "it has no base";
  EXPECT_EQ(set.Current()->epoch(), 1);
  EXPECT_EQ(set.instances().size(), 1);
}

TEST(WatchedSetTest, InstancesThatComeBackEndTheHold) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(5, {MakeInstance("a"), MakeInstance("b")}));
  set.Apply(SnapshotEvent(1, {}, 2));
  EXPECT_EQ(set.Apply(DeltaEvent(1, 2, {}, {}, 2)), nullptr);
  const auto back = set.Apply(DeltaEvent(2, 3, {MakeInstance("a")}, {}, 2));
  ASSERT_NE(back, nullptr);
  EXPECT_FALSE(back->stale());
  EXPECT_EQ(back->snapshot().instances_size(), 1);
  EXPECT_FALSE(set.holding());
}

TEST(WatchedSetTest, ADeltaThatNamesItsRemovalsIsAccepted) {
  TestedSet set(true);
  set.Apply(SnapshotEvent(5, {MakeInstance("a")}));
  const auto event = set.Apply(DeltaEvent(5, 6, {}, {"a"}));
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(set.instances().size(), 0);
  EXPECT_FALSE(set.holding());
}

TEST(WatchedSetTest, WithoutTheHoldEmptyIsAccepted) {
  TestedSet set(false);
  set.Apply(SnapshotEvent(5, {MakeInstance("a")}));
  ASSERT_NE(set.Apply(SnapshotEvent(6, {})), nullptr);
  EXPECT_EQ(set.instances().size(), 0);
}

// Every part can be read by a client that takes 4 MiB, whatever the size of the set.
TEST(WatchedSetTest, ALargeSetIsToldInParts) {
  std::vector<ServiceInstance> instances;
  instances.reserve(1000);
  for (int i = 0; i < 1000; ++i) instances.push_back(LongInstance(absl::StrCat(i), 8000));
  WatchedSet set(true);
  const EventPtr told = set.Apply(*EventOf(SnapshotEvent(5, instances)));
  ASSERT_TRUE(told->is_snapshot());
  EXPECT_GT(told->parts(), 30);
  EXPECT_EQ(told->instances(), 1000);
  EXPECT_EQ(set.Current(), told) << "shared by those who come at the same state";
  const EventPtr stale = set.MarkStale();
  ASSERT_NE(stale, nullptr);
  EXPECT_EQ(stale->kind(), Event::Kind::kFlags);
  const EventPtr again = set.Current();
  ASSERT_TRUE(again->is_snapshot());
  int received = 0;
  for (size_t i = 0; i < again->parts(); ++i) {
    const std::string encoded = again->EncodedPart(i);
    EXPECT_LE(encoded.size(), 300 << 10);
    EXPECT_EQ(encoded.size(), again->PartBytes(i));
    SubscribeResponse parsed;
    ASSERT_TRUE(parsed.ParseFromString(encoded));
    EXPECT_TRUE(parsed.stale());
    EXPECT_EQ(parsed.revision(), 5);
    EXPECT_EQ(parsed.snapshot().more(), i + 1 < again->parts());
    received += parsed.snapshot().instances_size();
  }
  EXPECT_EQ(received, 1000);
}

// What is kept is one message, however large, and gives the same set again.
TEST(WatchedSetTest, WhatIsKeptGivesTheSameSetStale) {
  std::vector<ServiceInstance> instances;
  instances.reserve(100);
  for (int i = 0; i < 100; ++i) instances.push_back(LongInstance(absl::StrCat(i), 8000));
  WatchedSet set(true);
  set.Apply(*EventOf(SnapshotEvent(5, instances)));
  SubscribeResponse kept;
  ASSERT_TRUE(kept.ParseFromString(set.Whole()));
  EXPECT_FALSE(kept.snapshot().more());
  WatchedSet restored(true);
  restored.Restore(*EventOf(kept));
  EXPECT_TRUE(InstanceSet::Difference(restored.instances(), set.instances()).empty());
  EXPECT_TRUE(restored.stale());
  EXPECT_EQ(restored.revision(), 5);
}

TEST(WatchedSetTest, ALongDeltaIsToldAsASnapshot) {
  std::vector<ServiceInstance> instances;
  instances.reserve(500);
  for (int i = 0; i < 500; ++i) instances.push_back(MakeInstance(absl::StrCat(i)));
  WatchedSet set(true);
  set.Apply(*EventOf(SnapshotEvent(5, instances)));
  for (auto& instance : instances) instance = LongInstance(instance.key().instance_id(), 1000);
  const EventPtr told = set.Apply(*EventOf(DeltaEvent(5, 6, instances)));
  ASSERT_TRUE(told->is_snapshot());
  EXPECT_EQ(told->revision(), 6);
  // One that is short beside its set stays a delta, up to a size that any client reads.
  for (int i = 500; i < 5000; ++i) instances.push_back(MakeInstance(absl::StrCat(i)));
  set.Apply(*EventOf(SnapshotEvent(7, instances)));
  std::vector<ServiceInstance> few;
  few.reserve(500);
  for (int i = 0; i < 500; ++i) few.push_back(LongInstance(absl::StrCat(i), 1001));
  EXPECT_TRUE(set.Apply(*EventOf(DeltaEvent(7, 8, few)))->is_delta());
  for (auto& instance : few) instance = LongInstance(instance.key().instance_id(), 3000);
  EXPECT_TRUE(set.Apply(*EventOf(DeltaEvent(8, 9, few)))->is_snapshot());
}

// A registry whose stream breaks, resumes, restarts, conflates and cheats, against the model of a
// subscriber; seeds 1 to 3,000.
TEST(WatchedSetTest, RandomizedAgainstAModel) {
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto pick = [&](int n) { return static_cast<int>(random() % n); };
    TestedSet set(pick(2) == 0);
    Subscriber subscriber;
    uint64_t epoch = 1, revision = 1;
    std::map<std::string, uint32_t> truth, sent;
    uint64_t sent_revision = 0;
    bool streaming = false, fresh = false;
    const auto hear = [&](const MessagePtr& event) {
      if (event != nullptr) subscriber.Receive(event);
    };
    const auto snapshot = [&] {
      std::vector<ServiceInstance> all;
      all.reserve(truth.size());
      for (const auto& [id, port] : truth) all.push_back(MakeInstance(id, port));
      hear(set.Apply(SnapshotEvent(revision, all, epoch)));
      sent = truth;
      sent_revision = revision;
      fresh = true;
    };
    const auto delta = [&] {
      std::vector<ServiceInstance> upserts;
      std::vector<std::string> removals;
      for (const auto& [id, port] : truth) {
        if (sent.count(id) == 0 || sent[id] != port) upserts.push_back(MakeInstance(id, port));
      }
      for (const auto& [id, port] : sent) {
        if (truth.count(id) == 0) removals.push_back(id);
      }
      hear(set.Apply(DeltaEvent(sent_revision, revision, upserts, removals, epoch)));
      sent = truth;
      sent_revision = revision;
      fresh = true;
    };
    for (int step = 0; step < 40; ++step) {
      switch (pick(9)) {
        case 0:
        case 1:
        case 2:
          ++revision;
          truth[std::string(1, 'a' + pick(4))] = 1 + pick(3);
          break;
        case 3:
          ++revision;
          truth.erase(std::string(1, 'a' + pick(4)));
          break;
        case 4:
          if (streaming) delta();
          break;
        case 5:  // the stream breaks, and is opened again where it was
          streaming = fresh = false;
          hear(set.MarkStale());
          break;
        case 6:
          if (!streaming) {
            streaming = true;
            // What came after is known only for the position that was really sent.
            if (set.epoch() == epoch && set.revision() == sent_revision && pick(2) == 0) {
              delta();
            } else {
              snapshot();
            }
          }
          break;
        case 7:  // a new life of the store
          if (pick(3) == 0) {
            ++epoch;
            revision = 1 + pick(3);
            truth.clear();
            streaming = fresh = false;
          }
          break;
        case 8:  // something is lost
          if (streaming && set.known()) {
            EXPECT_EQ(
                set.Apply(DeltaEvent(revision + 7, revision + 8, {MakeInstance("z")}, {}, epoch)),
                nullptr);
            EXPECT_TRUE(set.gap());
            streaming = fresh = false;
          }
          break;
      }
      if (fresh && streaming && !set.holding()) {
        ASSERT_EQ(subscriber.state(), sent);
        ASSERT_FALSE(subscriber.stale());
      }
      if (HasFailure()) return;
    }
    if (streaming) delta();
    if (streaming && set.holding()) hear(set.Release());
    if (streaming) {
      ASSERT_EQ(subscriber.state(), truth);
    }
  }
}

}  // namespace
}  // namespace failback
