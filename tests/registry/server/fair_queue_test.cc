#include "registry/server/fair_queue.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using ::testing::ElementsAre;

// The next task; it stays under way.
template <typename Task>
Task Next(FairQueue<Task>& queue) {
  return std::move(queue.Pop().task);
}

TEST(FairQueue, OwnersTakeTurns) {
  FairQueue<std::string> queue;
  EXPECT_TRUE(queue.empty());
  for (const char* const task : {"a1", "a2", "a3", "b1", "c1", "c2"}) {
    queue.Push(std::string(1, task[0]), task);
  }
  // On one thread.
  std::vector<std::string> order;
  while (!queue.empty()) {
    const auto next = queue.Pop();
    EXPECT_EQ(next.owner, next.task.substr(0, 1));
    order.push_back(next.task);
    queue.Done(next.owner);
  }
  EXPECT_THAT(order, ElementsAre("a1", "b1", "c1", "a2", "c2", "a3"));
}

TEST(FairQueue, OneWhoHasNothingUnderWayIsNext) {
  FairQueue<std::string> queue;
  for (int i = 0; i < 1000; ++i) queue.Push("a", "a");
  // On three threads.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Next(queue), "a");
  queue.Push("b", "b1");
  queue.Push("b", "b2");
  queue.Done("a");
  EXPECT_EQ(Next(queue), "b1");
  // Both have some: they take turns.
  queue.Done("a");
  EXPECT_EQ(Next(queue), "a");
  queue.Done("a");
  EXPECT_EQ(Next(queue), "b2");
}

TEST(FairQueue, ThreadsThatWouldBeIdleAreForThoseWhoHaveMuch) {
  FairQueue<std::string> queue;
  for (const char* const task : {"a1", "b1", "a2", "b2", "a3"}) {
    queue.Push(std::string(1, task[0]), task);
  }
  std::vector<std::string> order;
  while (!queue.empty()) order.push_back(Next(queue));
  EXPECT_THAT(order, ElementsAre("a1", "b1", "a2", "b2", "a3"));
}

TEST(FairQueue, WhatIsRemovedDoesNotComeOut) {
  FairQueue<std::string> queue;
  EXPECT_EQ(queue.Remove({}), std::nullopt);
  const auto first = queue.Push("a", "a1");
  const auto second = queue.Push("a", "a2");
  const auto third = queue.Push("a", "a3");
  const auto only = queue.Push("b", "b1");
  EXPECT_EQ(queue.Remove(second), "a2");
  EXPECT_EQ(queue.Remove(second), std::nullopt);
  EXPECT_EQ(queue.Remove(only), "b1");
  EXPECT_EQ(Next(queue), "a1");
  EXPECT_EQ(queue.Remove(first), std::nullopt) << "it is under way";
  EXPECT_EQ(queue.Remove(third), "a3");
  EXPECT_TRUE(queue.empty());
  queue.Push("a", "a4");
  queue.Done("a");
  EXPECT_EQ(Next(queue), "a4");
}

TEST(FairQueue, TakesWhatCannotBeCopied) {
  FairQueue<std::unique_ptr<int>> queue;
  const auto slot = queue.Push("", std::make_unique<int>(7));
  queue.Push("", std::make_unique<int>(8));
  EXPECT_EQ(**queue.Remove(slot), 7);
  EXPECT_EQ(*Next(queue), 8);
}

// The invariants, with nothing lost or doubled, on several threads.
TEST(FairQueue, AtRandomNoOwnerWaitsForTwoOfAnother) {
  SeededRandom random;
  struct Owner {
    int pushed = 0;
    int under_way = 0;
    std::map<int, FairQueue<int>::Slot> waiting;  // by number
    // Those whose tasks have come out while this one waited and had none under way.
    std::multiset<std::string> before;
  };
  FairQueue<int> queue;
  std::map<std::string, Owner> owners;
  std::vector<std::string> under_way;
  int64_t waiting = 0;
  for (int step = 0; step < 40000; ++step) {
    const std::string name(1, static_cast<char>('a' + random.Pick(6)));
    Owner& owner = owners[name];
    // Fills, then empties, and again.
    const bool fills = step / 1000 % 2 == 0;
    const int die = random.Pick(100);
    if (die < (fills ? 45 : 25)) {
      if (owner.waiting.empty()) owner.before.clear();
      owner.waiting[owner.pushed] = queue.Push(name, owner.pushed);
      ++owner.pushed;
      ++waiting;
    } else if (die < 55) {
      if (owner.waiting.empty()) continue;
      const auto gone = std::next(owner.waiting.begin(), random.Pick(owner.waiting.size()));
      ASSERT_EQ(queue.Remove(gone->second), gone->first);
      owner.waiting.erase(gone);
      --waiting;
    } else if (waiting > 0 && under_way.size() < 3) {
      const auto [served, number] = queue.Pop();
      Owner& its = owners[served];
      ASSERT_FALSE(its.waiting.empty());
      ASSERT_EQ(number, its.waiting.begin()->first) << served;
      its.waiting.erase(its.waiting.begin());
      --waiting;
      ++its.under_way;
      under_way.push_back(served);
      for (auto& [other, waiter] : owners) {
        if (waiter.waiting.empty() || waiter.under_way > 0) continue;
        waiter.before.insert(served);
        ASSERT_EQ(waiter.before.count(served), 1u) << other << " waits for " << served << " again";
      }
    } else if (!under_way.empty()) {
      std::swap(under_way[random.Pick(under_way.size())], under_way.back());
      Owner& its = owners[under_way.back()];
      queue.Done(under_way.back());
      under_way.pop_back();
      if (--its.under_way == 0) its.before.clear();
    }
    ASSERT_EQ(queue.size(), waiting);
  }
}

}  // namespace
}  // namespace failback
