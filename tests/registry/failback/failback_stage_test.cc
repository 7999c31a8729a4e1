#include "registry/failback/failback_stage.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace failback {
namespace {

constexpr Stage kStages[] = {Stage::kNone,    Stage::kHeldBack,  Stage::kQueued,
                             Stage::kWaiting, Stage::kParked,    Stage::kSuperseded,
                             Stage::kSettled, Stage::kTombstone, Stage::kGivenUp};

std::vector<Stage> Before(Stage to) {
  std::vector<Stage> before;
  for (const Stage from : kStages) {
    if (MayFollow(from, to)) before.push_back(from);
  }
  return before;
}

struct Named : StageLink {
  explicit Named(std::string name) : name(std::move(name)) {}
  const std::string name;
};

std::string NamesIn(const StageList<Named>& list) {
  std::string names;
  for (const Named* named : list.All()) names += named->name;
  return names;
}

TEST(StageTest, ATombstoneAndWhatWasGivenUpAreSentOnlyAsANewIntent) {
  EXPECT_FALSE(MayFollow(Stage::kTombstone, Stage::kQueued));
  EXPECT_FALSE(MayFollow(Stage::kGivenUp, Stage::kQueued));
  EXPECT_FALSE(MayFollow(Stage::kNone, Stage::kQueued));
  for (const Stage from : kStages) EXPECT_TRUE(MayFollow(from, Stage::kHeldBack));
}

TEST(StageTest, OnlyWhatWasSentIsSettledOrSuperseded) {
  EXPECT_EQ(Before(Stage::kSettled),
            (std::vector<Stage>{Stage::kQueued, Stage::kSuperseded, Stage::kGivenUp}));
  EXPECT_EQ(Before(Stage::kTombstone), (std::vector<Stage>{Stage::kQueued, Stage::kGivenUp}));
  EXPECT_EQ(Before(Stage::kSuperseded), (std::vector<Stage>{Stage::kQueued, Stage::kSuperseded}));
}

TEST(StageTest, WhatIsNotInTheTableFailsNoAttemptAndIsNotCancelled) {
  for (const Stage to : {Stage::kNone, Stage::kWaiting, Stage::kParked, Stage::kGivenUp}) {
    EXPECT_FALSE(MayFollow(Stage::kNone, to)) << StageName(to);
  }
}

TEST(StageTest, EachHasANameOfItsOwn) {
  for (const Stage a : kStages) {
    for (const Stage b : kStages) EXPECT_EQ(a == b, StageName(a) == std::string(StageName(b)));
  }
}

TEST(StageListTest, KeepsTheOrderInWhichTheyCame) {
  Named a("a"), b("b"), c("c");
  StageList<Named> list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.PopFront(), nullptr);
  for (Named* named : {&a, &b, &c}) list.PushBack(named);
  EXPECT_EQ(NamesIn(list), "abc");
  EXPECT_EQ(list.front(), &a);
  EXPECT_EQ(list.PopFront(), &a);
  EXPECT_FALSE(a.linked());
  list.PushBack(&a);
  EXPECT_EQ(NamesIn(list), "bca");
}

TEST(StageListTest, OneLeavesFromAnywhereAndChangesTheList) {
  Named a("a"), b("b"), c("c");
  StageList<Named> list, other;
  for (Named* named : {&a, &b, &c}) list.PushBack(named);
  b.Unlink();
  b.Unlink();  // of none
  EXPECT_EQ(NamesIn(list), "ac");
  other.PushBack(&b);
  EXPECT_EQ(NamesIn(other), "b");
  a.Unlink();
  c.Unlink();
  EXPECT_TRUE(list.empty());
  EXPECT_TRUE(b.linked());
}

TEST(StageListTest, ItsEndUnlinksWhatOutlivesIt) {
  Named a("a");
  {
    StageList<Named> list;
    list.PushBack(&a);
  }
  EXPECT_FALSE(a.linked());
}

}  // namespace
}  // namespace failback
