#include "registry/watch/merged_set.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/subscriber_model.h"

namespace failback {
namespace {

using Ports = std::map<std::string, uint32_t>;

// A set of messages.
class TestedSet : public MergedSet {
 public:
  using MergedSet::MergedSet;
  MessagePtr Apply(size_t upstream, const SubscribeResponse& message) {
    return AsOne(MergedSet::Apply(upstream, *EventOf(message)));
  }
  MessagePtr Begin() { return AsOne(MergedSet::Begin()); }
};

// A merged set of two upstreams, "old" and "new", and a subscriber that checks what it receives.
class MergedSetTest : public testing::Test {
 protected:
  static constexpr size_t kOld = 0;
  static constexpr size_t kNew = 1;

  // Whether something was told.
  bool Apply(size_t upstream, const SubscribeResponse& message) {
    return Hear(set_.Apply(upstream, message));
  }
  bool Stale(size_t upstream, bool stale = true) {
    SubscribeResponse message;
    message.set_epoch(1);
    message.set_stale(stale);
    return Apply(upstream, message);
  }
  bool Hear(const MessagePtr& event) {
    if (event == nullptr) return false;
    last_ = *event;
    subscriber_.Hear(*event);
    return true;
  }
  // Ports by instance id.
  Ports Shown() const {
    Ports ports;
    for (const auto& [key, port] : subscriber_.state()) {
      InstanceKey parsed;
      ParseCanonicalKey(key, &parsed);
      ports[parsed.instance_id()] = port;
    }
    return ports;
  }
  // Both have told, and hold these.
  void Begin(const std::vector<ServiceInstance>& old_ones,
             const std::vector<ServiceInstance>& new_ones) {
    Apply(kOld, SnapshotEvent(1, old_ones));
    Apply(kNew, SnapshotEvent(1, new_ones));
  }

  TestedSet set_{2, 100};
  SubscriberModel subscriber_;
  SubscribeResponse last_;
};

TEST_F(MergedSetTest, NothingIsToldBeforeAllHaveTold) {
  EXPECT_FALSE(Apply(kOld, SnapshotEvent(1, {MakeInstance("a", 1)})));
  EXPECT_FALSE(Apply(kOld, DeltaEvent(1, 2, {MakeInstance("b", 1)})));
  EXPECT_TRUE(Apply(kNew, SnapshotEvent(7, {MakeInstance("c", 2)})));
  EXPECT_EQ(Shown(), (Ports{{"a", 1}, {"b", 1}, {"c", 2}}));
  EXPECT_EQ(last_.epoch(), 100);
  EXPECT_FALSE(subscriber_.stale());
}

TEST_F(MergedSetTest, TheWaitEndsWithWhatIsKnownMarkedStale) {
  EXPECT_FALSE(Hear(set_.Begin())) << "nothing is known";
  EXPECT_TRUE(Apply(kOld, SnapshotEvent(1, {MakeInstance("a", 1)}))) << "the wait is over";
  EXPECT_TRUE(subscriber_.stale());
  EXPECT_TRUE(Apply(kNew, SnapshotEvent(1, {MakeInstance("b", 1)})));
  EXPECT_TRUE(last_.has_delta());
  EXPECT_FALSE(subscriber_.stale());
  EXPECT_EQ(Shown(), (Ports{{"a", 1}, {"b", 1}}));
  EXPECT_FALSE(Hear(set_.Begin()));
}

TEST_F(MergedSetTest, AnInstanceIsThereWhileAnyUpstreamHasIt) {
  Begin({MakeInstance("a", 1)}, {MakeInstance("a", 1)});
  EXPECT_FALSE(Apply(kOld, DeltaEvent(1, 2, {}, {"a"}))) << "the other one has it";
  EXPECT_TRUE(Apply(kNew, DeltaEvent(1, 2, {}, {"a"})));
  EXPECT_EQ(Shown(), Ports());
}

TEST_F(MergedSetTest, AKeyStaysWithTheUpstreamThatToldItFirst) {
  Begin({MakeInstance("a", 1)}, {MakeInstance("a", 1)});
  EXPECT_TRUE(Apply(kOld, DeltaEvent(1, 2, {MakeInstance("a", 2)})));
  EXPECT_FALSE(Apply(kNew, DeltaEvent(1, 2, {MakeInstance("a", 5)}))) << "not its word that counts";
  EXPECT_FALSE(Apply(kNew, DeltaEvent(2, 3, {MakeInstance("a", 2)})));
  EXPECT_EQ(last_.epoch(), 100);
  EXPECT_EQ(Shown(), (Ports{{"a", 2}}));
}

TEST_F(MergedSetTest, TheFirstInOrderWinsAtTheStart) {
  Apply(kNew, SnapshotEvent(1, {MakeInstance("a", 2)}));
  Apply(kOld, SnapshotEvent(1, {MakeInstance("a", 1)}));
  EXPECT_EQ(Shown(), (Ports{{"a", 1}}));
}

TEST_F(MergedSetTest, AnothersWordInPlaceOfWhatWasToldBeginsANewEpoch) {
  Begin({MakeInstance("a", 1)}, {MakeInstance("a", 2)});
  EXPECT_TRUE(Apply(kOld, DeltaEvent(1, 2, {}, {"a"})));
  EXPECT_TRUE(last_.has_snapshot());
  EXPECT_EQ(last_.epoch(), 101);
  EXPECT_EQ(Shown(), (Ports{{"a", 2}}));
}

TEST_F(MergedSetTest, AFreshWordCountsMoreThanAStaleOne) {
  Begin({MakeInstance("a", 1), MakeInstance("only", 1)}, {MakeInstance("a", 1)});
  EXPECT_TRUE(Stale(kOld));
  EXPECT_EQ(last_.epoch(), 100) << "the same content";
  EXPECT_TRUE(Apply(kNew, DeltaEvent(1, 2, {MakeInstance("a", 3)})));
  EXPECT_EQ(Shown(), (Ports{{"a", 3}, {"only", 1}})) << "what only the stale one has stays";
  EXPECT_TRUE(subscriber_.stale());
  EXPECT_TRUE(Stale(kOld, false));
  EXPECT_EQ(Shown(), (Ports{{"a", 3}, {"only", 1}})) << "and stays with the one it moved to";
  EXPECT_FALSE(subscriber_.stale());
}

TEST_F(MergedSetTest, SessionsAreHeldWhileTheyAreAtAnyUpstream) {
  Begin({MakeInstance("a", 1)}, {MakeInstance("b", 1)});
  const auto held = [&](size_t upstream, bool is_held) {
    SubscribeResponse message;
    message.set_epoch(1);
    message.set_held(is_held);
    return Apply(upstream, message);
  };
  EXPECT_TRUE(held(kOld, true));
  EXPECT_TRUE(last_.held());
  EXPECT_FALSE(last_.has_delta() || last_.has_snapshot());
  EXPECT_FALSE(held(kNew, true)) << "it is so already";
  EXPECT_FALSE(held(kOld, false));
  EXPECT_TRUE(held(kNew, false));
  EXPECT_FALSE(last_.held());
}

TEST_F(MergedSetTest, AStaleUpstreamKeepsNoGhosts) {
  Begin({MakeInstance("a", 1)}, {MakeInstance("a", 1)});
  Stale(kOld);
  EXPECT_TRUE(Apply(kNew, DeltaEvent(1, 2, {}, {"a"})));
  EXPECT_EQ(Shown(), Ports());
  // When it is back its word counts again, in an epoch of its own.
  EXPECT_TRUE(Stale(kOld, false));
  EXPECT_EQ(last_.epoch(), 101);
  EXPECT_EQ(Shown(), (Ports{{"a", 1}}));
}

TEST_F(MergedSetTest, WhatReturnsFromAnotherUpstreamBeginsANewEpoch) {
  Begin({MakeInstance("a", 1)}, {});
  Apply(kOld, DeltaEvent(1, 2, {}, {"a"}));
  EXPECT_TRUE(Apply(kOld, DeltaEvent(2, 3, {MakeInstance("a", 2)})));
  EXPECT_EQ(last_.epoch(), 100) << "its own history";
  Apply(kOld, DeltaEvent(3, 4, {}, {"a"}));
  EXPECT_TRUE(Apply(kNew, DeltaEvent(1, 2, {MakeInstance("a", 1)})));
  EXPECT_EQ(last_.epoch(), 101) << "it may be older than the removal";
}

TEST_F(MergedSetTest, AnUpstreamsNewEpochIsOneOfTheMergedSet) {
  Begin({MakeInstance("a", 1)}, {});
  EXPECT_TRUE(Apply(kOld, SnapshotEvent(1, {MakeInstance("a", 1)}, /*epoch=*/9)));
  EXPECT_TRUE(last_.has_snapshot());
  EXPECT_EQ(last_.epoch(), 101);
}

TEST_F(MergedSetTest, ManyRemovalsAreForgottenWithANewEpoch) {
  std::vector<ServiceInstance> many;
  std::vector<std::string> ids;
  for (int i = 0; i < 1001; ++i) {
    ids.push_back(absl::StrCat(i));
    many.push_back(MakeInstance(ids.back(), 1));
  }
  Begin(many, {});
  EXPECT_TRUE(Apply(kOld, DeltaEvent(1, 2, {}, ids)));
  EXPECT_EQ(last_.epoch(), 101);
  EXPECT_EQ(last_.revision(), 1) << "an epoch counts from one";
  EXPECT_TRUE(Apply(kOld, DeltaEvent(2, 3, {MakeInstance("x")})));
  EXPECT_TRUE(Apply(kOld, DeltaEvent(3, 4, {}, {"x"})));
  EXPECT_EQ(last_.epoch(), 101) << "one more is not too many again";
}

TEST_F(MergedSetTest, NoEpochIsZero) {
  TestedSet set(1, UINT64_MAX);
  set.Apply(0, SnapshotEvent(1, {MakeInstance("a")}, 1));
  const auto event = set.Apply(0, SnapshotEvent(1, {MakeInstance("a")}, 2));
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->epoch(), 1);
}

// Random streams of three upstreams; SubscriberModel checks order, bases and repetitions.
TEST(MergedSetRandomTest, ShowsTheUnionInOrder) {
  const char* const only = std::getenv("FAILBACK_SEED");
  const uint32_t first = only == nullptr ? 1 : std::atoi(only);
  for (uint32_t seed = first; seed < first + (only == nullptr ? 500 : 1); ++seed) {
    SCOPED_TRACE(absl::StrCat("FAILBACK_SEED=", seed));
    std::mt19937 random(seed);
    const auto pick = [&](int n) { return static_cast<int>(random() % n); };
    struct Upstream {
      bool known = false, stale = false;
      uint64_t epoch = 1, revision = 0;
      Ports ports;
    };
    std::vector<Upstream> upstreams(3);
    // Who buried what the stale ones have, by upstream.
    std::vector<std::map<std::string, bool>> buried(3);
    TestedSet set(3, 1);
    SubscriberModel subscriber;
    for (int step = 0; step < 60; ++step) {
      const size_t i = pick(3);
      Upstream& upstream = upstreams[i];
      SubscribeResponse message;
      std::vector<std::string> removed;
      if (!upstream.known || pick(10) == 0) {
        if (upstream.known) ++upstream.epoch;
        for (const auto& [id, port] : upstream.ports) removed.push_back(id);
        upstream.ports.clear();
        for (int n = pick(4); n > 0; --n) upstream.ports[absl::StrCat(pick(4))] = 1 + pick(3);
        std::vector<ServiceInstance> instances;
        for (const auto& [id, port] : upstream.ports) instances.push_back(MakeInstance(id, port));
        upstream.revision = 1;
        message = SnapshotEvent(1, instances, upstream.epoch);
        upstream.known = true;
        upstream.stale = pick(4) == 0;
      } else if (pick(4) == 0) {
        upstream.stale = !upstream.stale;
        message.set_epoch(upstream.epoch);
        message.set_revision(upstream.revision);
      } else if (upstream.stale) {
        continue;  // a stream that is disconnected reports nothing
      } else {
        const std::string id = absl::StrCat(pick(4));
        if (upstream.ports.count(id) > 0 && pick(2) == 0) {
          upstream.ports.erase(id);
          removed.push_back(id);
          message = DeltaEvent(upstream.revision, upstream.revision + 1, {}, {id}, upstream.epoch);
        } else {
          upstream.ports[id] = 1 + pick(3);
          message = DeltaEvent(upstream.revision, upstream.revision + 1,
                               {MakeInstance(id, upstream.ports[id])}, {}, upstream.epoch);
        }
        ++upstream.revision;
      }
      message.set_stale(upstream.stale);
      if (!upstream.stale) {
        buried[i].clear();
        for (const std::string& id : removed) {
          if (upstream.ports.count(id) > 0) continue;
          for (size_t other = 0; other < 3; ++other) {
            if (upstreams[other].stale && upstreams[other].ports.count(id) > 0) {
              buried[other][id] = true;
            }
          }
        }
      }
      if (auto event = set.Apply(i, message); event != nullptr) subscriber.Hear(*event);
      if (step == 20) {
        if (auto event = set.Begin(); event != nullptr) subscriber.Hear(*event);
      }
      if (!subscriber.known()) continue;
      std::map<std::string, std::vector<uint32_t>> fresh, any;
      bool stale = false;
      for (size_t u = 0; u < 3; ++u) {
        stale = stale || !upstreams[u].known || upstreams[u].stale;
        for (const auto& [id, port] : upstreams[u].ports) {
          if (buried[u].count(id) > 0) continue;
          const std::string key = CanonicalKey(MakeInstance(id).key());
          any[key].push_back(port);
          if (!upstreams[u].stale) fresh[key].push_back(port);
        }
      }
      EXPECT_EQ(subscriber.stale(), stale);
      EXPECT_EQ(subscriber.state().size(), any.size());
      for (const auto& [key, port] : subscriber.state()) {
        const auto& allowed = fresh.count(key) > 0 ? fresh[key] : any[key];
        EXPECT_EQ(std::count(allowed.begin(), allowed.end(), port) > 0, true)
            << key << " port " << port;
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace failback
