#include "registry/store/eviction_vote.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

// A number of owners with so many sessions each, of which so many fail.
struct Fleet {
  std::string name;
  int owners = 1;
  int sessions = 1;
  int failing = 0;
};

struct Case {
  std::string title;
  std::vector<Fleet> fleets;
  std::string asked;  // an owner
  bool may_end = false;
};

bool MayEnd(const Case& each) {
  std::vector<std::string> names;
  for (const Fleet& fleet : each.fleets) {
    for (int i = 0; i < fleet.owners; ++i) names.push_back(absl::StrCat(fleet.name, i));
  }
  EvictionVote::Owners owners;
  auto name = names.begin();
  for (const Fleet& fleet : each.fleets) {
    for (int i = 0; i < fleet.owners; ++i, ++name) {
      for (int s = 0; s < fleet.sessions; ++s) owners[*name].Add(s < fleet.failing);
    }
  }
  return EvictionVote(EvictionVote::Rule(), owners).MayEnd(each.asked);
}

TEST(EvictionVote, Table) {
  const Case cases[] = {
      // All have one owner: the share decides.
      {"19 of 19", {{"", 1, 19, 19}}, "0", true},
      {"3 of 20", {{"", 1, 20, 3}}, "0", true},
      {"4 of 20", {{"", 1, 20, 4}}, "0", false},
      {"15 of 100", {{"", 1, 100, 15}}, "0", true},
      {"16 of 100", {{"", 1, 100, 16}}, "0", false},
      {"150 of 1,000", {{"", 1, 1000, 150}}, "0", true},
      {"151 of 1,000", {{"", 1, 1000, 151}}, "0", false},
      {"all of 1,000", {{"", 1, 1000, 1000}}, "0", false},

      // Half of all owners lose touch: theirs are held, and those of the others that fail too.
      {"10 of 20 owners", {{"well", 10}, {"away", 10, 1, 1}}, "away3", false},
      {"50 of 100 owners", {{"well", 50}, {"away", 50, 1, 1}}, "away3", false},
      {"500 of 1,000 owners", {{"well", 500}, {"away", 500, 1, 1}}, "away3", false},
      {"500 of 1,000 owners, another's", {{"well", 500}, {"away", 500, 1, 1}}, "well3", false},
      {"2 of 4 owners with 25 each", {{"well", 2, 25}, {"away", 2, 25, 25}}, "away1", false},

      // One owner abandons three hundred: its own are held, and no other's.
      {"among 20", {{"one", 20, 1, 0}, {"bad", 1, 300, 300}}, "one3", true},
      {"among 20 with 3 lost",
       {{"one", 17}, {"away", 3, 1, 1}, {"bad", 1, 300, 300}},
       "away1",
       true},
      {"among 100", {{"one", 100, 1, 0}, {"bad", 1, 300, 300}}, "one3", true},
      {"among 1,000", {{"one", 999}, {"away", 1, 1, 1}, {"bad", 1, 300, 300}}, "away0", true},
      {"the fleet is one owner", {{"fleet", 1, 40, 2}, {"bad", 1, 300, 300}}, "fleet0", true},
      {"too few without it", {{"fleet", 1, 5, 5}, {"bad", 1, 300, 300}}, "fleet0", true},
      {"its own", {{"one", 20}, {"bad", 1, 300, 300}}, "bad0", false},
      {"a partition beside it",
       {{"one", 50}, {"away", 50, 1, 1}, {"bad", 1, 300, 300}},
       "away3",
       false},
      // Two of them can.
      {"two", {{"one", 20}, {"bad", 2, 300, 300}}, "one3", false},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(MayEnd(each), each.may_end) << each.title;
  }
}

// Where no more than the share fails, one more owner can do what it likes.
TEST(EvictionVote, NoOwnerAloneMakesItHoldForOthers) {
  for (const int fleet : {20, 100, 1000}) {
    for (const int failing : {1, fleet / 10, fleet * 15 / 100}) {
      const std::vector<Fleet> others = {{"well", fleet - failing}, {"away", failing, 1, 1}};
      for (const int sessions : {1, 20, 300, 100000}) {
        for (const int abandoned : {1, sessions / 2, sessions}) {
          std::vector<Fleet> with = others;
          with.push_back({"bad", 1, sessions, abandoned});
          EXPECT_TRUE(MayEnd({"", with, "away0"}))
              << failing << " of " << fleet << ", and " << abandoned << " of " << sessions;
        }
      }
    }
  }
}

}  // namespace
}  // namespace failback
