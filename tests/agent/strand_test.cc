#include "agent/strand.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "retry/executor.h"

namespace failback {
namespace {

TEST(StrandTest, RunsTasksInOrderOneAtATime) {
  std::vector<int> ran;
  std::atomic<int> running{0};
  {
    ThreadPool pool(4);
    auto strand = Strand::Create(&pool);
    for (int i = 0; i < 1000; ++i) {
      strand->Post([&, i] {
        EXPECT_EQ(running.fetch_add(1), 0);
        ran.push_back(i);
        running.fetch_sub(1);
      });
    }
  }  // the pool runs what is queued
  ASSERT_EQ(ran.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ran[i], i);
}

TEST(StrandTest, NothingRunsAfterClose) {
  ThreadPool pool(2);
  for (int round = 0; round < 200; ++round) {
    auto strand = Strand::Create(&pool);
    auto closed = std::make_shared<std::atomic<bool>>(false);
    for (int i = 0; i < 10; ++i) {
      strand->Post([closed] { EXPECT_FALSE(closed->load()); });
    }
    strand->Close();
    closed->store(true);
    strand->Post([] { FAIL() << "posted after Close"; });
  }
}

TEST(StrandTest, CloseFromWithinATaskReturnsAndIsTheLast) {
  int after = 0;
  {
    ThreadPool pool(1);
    auto strand = Strand::Create(&pool);
    // The first waits for the second to be queued, so that there is something to drop.
    std::atomic<bool> queued{false};
    strand->Post([&, strand] {
      while (!queued.load()) std::this_thread::yield();
      strand->Close();
    });
    strand->Post([&] { ++after; });
    queued.store(true);
  }
  EXPECT_EQ(after, 0);
}

}  // namespace
}  // namespace failback
