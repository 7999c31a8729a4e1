#include "registry/failback/ordered_index.h"

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/util/environment.h"

namespace failback {
namespace {

struct Named {
  std::string key;
  int number = 0;
};
using NamedPtr = std::shared_ptr<Named>;
using Index = OrderedIndex<NamedPtr>;

NamedPtr Make(const std::string& key, int number = 0) {
  return std::make_shared<Named>(Named{key, number});
}

bool Add(Index* index, const NamedPtr& named) { return index->Add(named->key, named); }

std::vector<int> Numbers(const Index& index) {
  std::vector<int> numbers;
  for (const auto& [key, named] : index) {
    EXPECT_EQ(key, named->key);
    numbers.push_back(named->number);
  }
  return numbers;
}

TEST(OrderedIndexTest, IsWalkedInTheOrderInWhichItCame) {
  Index index;
  EXPECT_EQ(Numbers(index), std::vector<int>());
  std::vector<int> added;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Add(&index, Make(std::to_string(i * 7919 % 1000), i)));
    added.push_back(i);
  }
  EXPECT_EQ(Numbers(index), added);
  EXPECT_EQ(index.size(), 1000u);
}

TEST(OrderedIndexTest, TheFirstOfAKeyStays) {
  Index index;
  ASSERT_TRUE(Add(&index, Make("a", 1)));
  EXPECT_FALSE(Add(&index, Make("a", 2)));
  ASSERT_NE(index.Find("a"), nullptr);
  EXPECT_EQ((*index.Find("a"))->number, 1);
  EXPECT_EQ(index.size(), 1u);
  EXPECT_EQ(index.Find("b"), nullptr);
  index.Remove("b");
  EXPECT_EQ(index.size(), 1u);
}

TEST(OrderedIndexTest, WhatIsRemovedGoesWithTheLastPointerToIt) {
  Index index;
  NamedPtr named = Make("a");
  const std::weak_ptr<Named> left = named;
  ASSERT_TRUE(Add(&index, named));
  const std::string& key = named->key;
  named.reset();
  index.Remove(key);  // the key goes with it
  EXPECT_TRUE(left.expired());
  EXPECT_EQ(index.size(), 0u);
}

TEST(OrderedIndexTest, MayShrinkWhileItIsWalked) {
  Index index;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Add(&index, Make(std::to_string(i), i)));
  std::vector<int> seen;
  for (const auto& [key, named] : index) {
    seen.push_back(named->number);
    index.Remove(std::to_string(named->number + 1));
  }
  EXPECT_EQ(seen, (std::vector<int>{0, 2, 4, 6, 8}));
}

TEST(OrderedIndexTest, ACopyStandsOnItsOwn) {
  Index index;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Add(&index, Make(std::to_string(i), i)));
  const Index copy = index;
  for (int i = 0; i < 10; ++i) index.Remove(std::to_string(i));
  EXPECT_EQ(index.size(), 0u);
  EXPECT_EQ(copy.size(), 10u);
  ASSERT_NE(copy.Find("7"), nullptr);
  EXPECT_EQ((*copy.Find("7"))->number, 7);
}

// As a list of pairs does, whatever comes and goes.
TEST(OrderedIndexTest, DoesWhatAListDoes) {
  const auto seed = FromEnvironment<uint32_t>("FAILBACK_SEED", 1);
  SCOPED_TRACE(absl::StrCat("again with FAILBACK_SEED=", seed));
  std::mt19937_64 random(seed);
  Index index;
  std::list<NamedPtr> model;
  for (int step = 0; step < 20000; ++step) {
    // Grows, then shrinks, again and again.
    const bool grows = step / 1000 % 2 == 0;
    const std::string key = std::to_string(random() % 500);
    const auto it = std::find_if(model.begin(), model.end(),
                                 [&](const NamedPtr& named) { return named->key == key; });
    ASSERT_EQ(index.Find(key) != nullptr, it != model.end());
    if (random() % 4 == 0 ? !grows : grows) {
      const NamedPtr named = Make(key, step);
      ASSERT_EQ(Add(&index, named), it == model.end());
      if (it == model.end()) model.push_back(named);
    } else {
      index.Remove(key);
      if (it != model.end()) model.erase(it);
    }
    ASSERT_EQ(index.size(), model.size());
    if (step % 100 != 0) continue;
    std::vector<int> numbers;
    for (const NamedPtr& named : model) numbers.push_back(named->number);
    ASSERT_EQ(Numbers(index), numbers);
  }
}

}  // namespace
}  // namespace failback
