#include "registry/fair_queue.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::ElementsAre;

TEST(FairQueue, OwnersTakeTurns) {
  FairQueue<std::string> queue;
  EXPECT_TRUE(queue.empty());
  for (const char* const task : {"a1", "a2", "a3", "b1", "c1", "c2"}) {
    queue.Push(std::string(1, task[0]), task);
  }
  std::vector<std::string> order;
  while (!queue.empty()) order.push_back(queue.Pop());
  EXPECT_THAT(order, ElementsAre("a1", "b1", "c1", "a2", "c2", "a3"));
}

TEST(FairQueue, WhoComesLaterDoesNotWaitForAllOfOneThatCameBefore) {
  FairQueue<std::string> queue;
  for (int i = 0; i < 1000; ++i) queue.Push("a", "a");
  queue.Pop();
  queue.Push("b", "b");
  EXPECT_EQ(queue.Pop(), "a");
  EXPECT_EQ(queue.Pop(), "b");
}

TEST(FairQueue, TakesWhatCannotBeCopied) {
  FairQueue<std::unique_ptr<int>> queue;
  queue.Push("", std::make_unique<int>(7));
  EXPECT_EQ(*queue.Pop(), 7);
}

// The invariants, with nothing lost or doubled.
TEST(FairQueue, AtRandomNoOwnerWaitsForTwoOfAnother) {
  const char* const given = std::getenv("FAILBACK_TEST_SEED");
  const uint64_t seed =
      given == nullptr ? std::random_device()() : std::strtoull(given, nullptr, 10);
  SCOPED_TRACE("replay with FAILBACK_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  struct Owner {
    int pushed = 0;
    int popped = 0;
    // Those whose tasks have come out since this one came, or had its turn.
    std::multiset<std::string> before;
  };
  FairQueue<std::pair<std::string, int>> queue;
  std::map<std::string, Owner> owners;
  int waiting = 0;
  for (int step = 0; step < 20000; ++step) {
    // Fills, then empties, and again.
    if (random() % 100 < (step / 1000 % 2 == 0 ? 60u : 40u)) {
      const std::string name(1, static_cast<char>('a' + random() % 6));
      Owner& owner = owners[name];
      if (owner.pushed == owner.popped) owner.before.clear();
      queue.Push(name, {name, owner.pushed++});
      ++waiting;
    } else if (waiting > 0) {
      ASSERT_FALSE(queue.empty());
      const auto [name, number] = queue.Pop();
      --waiting;
      ASSERT_EQ(number, owners[name].popped++) << name;
      owners[name].before.clear();
      for (auto& [other, owner] : owners) {
        if (other == name || owner.pushed == owner.popped) continue;
        owner.before.insert(name);
        ASSERT_EQ(owner.before.count(name), 1u) << other << " waits for " << name << " again";
      }
    }
    ASSERT_EQ(queue.empty(), waiting == 0);
  }
}

}  // namespace
}  // namespace failback
