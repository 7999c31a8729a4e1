#include "registry/watch/known_set.h"

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace failback {
namespace {

using Change = KnownSet::Change;

TEST(KnownSetTest, HasWhatTheChangesLeave) {
  const KnownSetPtr first = KnownSet::After(nullptr, {{7, 70}, {3, 30}, {5, 50}});
  const KnownSetPtr second = KnownSet::After(first, {{3, 0}, {5, 51}, {9, 90}});
  EXPECT_EQ(ContentOf(second, 3), 0U);
  EXPECT_EQ(ContentOf(second, 5), 51U);
  EXPECT_EQ(ContentOf(second, 7), 70U);
  EXPECT_EQ(ContentOf(second, 9), 90U);
  EXPECT_EQ(SizeOf(second), 3U);
  // What it was made from is as it was.
  EXPECT_EQ(ContentOf(first, 3), 30U);
  EXPECT_EQ(ContentOf(first, 5), 50U);
}

TEST(KnownSetTest, OfOneKeyTheLastChangeCounts) {
  EXPECT_EQ(ContentOf(KnownSet::After(nullptr, {{3, 30}, {3, 31}}), 3), 31U);
  EXPECT_EQ(KnownSet::After(nullptr, {{3, 30}, {3, 0}}), nullptr);
}

TEST(KnownSetTest, AgreesWithAMap) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::map<uint64_t, uint64_t> model;
  KnownSetPtr set;
  for (int step = 0; step < 2000; ++step) {
    std::vector<Change> changes;
    for (uint64_t count = random() % 5; count > 0; --count) {
      changes.push_back({random() % 40, random() % 4});
    }
    set = KnownSet::After(set, changes);
    for (const Change& change : changes) {
      if (change.content == 0) {
        model.erase(change.key);
      } else {
        model[change.key] = change.content;
      }
    }
    ASSERT_EQ(SizeOf(set), model.size());
    for (uint64_t key = 0; key < 40; ++key) {
      const auto it = model.find(key);
      ASSERT_EQ(ContentOf(set, key), it == model.end() ? 0 : it->second) << key;
    }
  }
}

TEST(KnownSetTest, ThoseWhoHaveTheSameShareIt) {
  const KnownSet::Changes snapshot({{1, 10}, {2, 20}});
  const KnownSetPtr one = snapshot.After(nullptr);
  EXPECT_EQ(snapshot.After(nullptr), one);
  const KnownSet::Changes delta({{2, 21}});
  EXPECT_EQ(delta.After(one), delta.After(one));
}

TEST(KnownSetTest, ThoseWhoCameToTheSameByOtherWaysShareItAfterTheNextChange) {
  const KnownSetPtr joined = KnownSet::Changes({{1, 10}, {2, 21}}).After(nullptr);
  const KnownSetPtr followed =
      KnownSet::Changes({{2, 21}}).After(KnownSet::Changes({{1, 10}, {2, 20}}).After(nullptr));
  EXPECT_TRUE(HaveSame(joined, followed));
  EXPECT_NE(joined, followed);
  const KnownSet::Changes delta({{3, 30}});
  const KnownSetPtr one = delta.After(joined);
  EXPECT_EQ(delta.After(followed), one);
}

// One who is behind has another set before the same change, and must not get that of the others.
TEST(KnownSetTest, ThoseWhoHaveOtherThingsDoNotShare) {
  const KnownSet::Changes delta({{3, 30}});
  const KnownSetPtr one = delta.After(KnownSet::After(nullptr, {{1, 10}, {2, 20}}));
  const KnownSetPtr other = delta.After(KnownSet::After(nullptr, {{1, 20}, {2, 10}}));
  EXPECT_FALSE(HaveSame(one, other));
  EXPECT_EQ(ContentOf(other, 1), 20U);
  EXPECT_EQ(ContentOf(delta.After(nullptr), 1), 0U);
}

// What none has any more is not kept for the next.
TEST(KnownSetTest, KeepsNothingThatIsNotInUse) {
  const KnownSet::Changes delta({{3, 30}});
  std::weak_ptr<const KnownSet> made = delta.After(nullptr);
  EXPECT_TRUE(made.expired());
  for (uint64_t key = 10; key < 100; ++key) {
    EXPECT_EQ(ContentOf(delta.After(KnownSet::After(nullptr, {{key, 1}})), 3), 30U);
  }
}

}  // namespace
}  // namespace failback
