#include "registry/server/read_threads.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

// One thread, which is kept busy until Release().
class BusyReads {
 public:
  BusyReads() {
    reads_.Push("busy", [this] {
      begun_.Notify();
      release_.WaitForNotification();
    });
    begun_.WaitForNotification();
  }
  ~BusyReads() { Release(); }

  ReadThreads& reads() { return reads_; }
  void Release() {
    if (!release_.HasBeenNotified()) release_.Notify();
    reads_.Join();
  }

 private:
  absl::Notification begun_, release_;
  ReadThreads reads_{1};
};

TEST(ReadThreads, WhatIsWithdrawnIsNotCarriedOut) {
  BusyReads busy;
  auto held = std::make_shared<int>();
  std::atomic<bool> withdrawn{false}, other{false};
  const ReadThreads::Slot slot = busy.reads().Push("a", [&withdrawn, held] { withdrawn = true; });
  busy.reads().Push("a", [&other] { other = true; });
  EXPECT_EQ(busy.reads().waiting(), 2);
  EXPECT_TRUE(busy.reads().Withdraw(slot));
  EXPECT_EQ(held.use_count(), 1);  // what it held is free at once
  EXPECT_FALSE(busy.reads().Withdraw(slot));
  EXPECT_EQ(busy.reads().waiting(), 1);
  busy.Release();
  EXPECT_FALSE(withdrawn);
  EXPECT_TRUE(other);
}

TEST(ReadThreads, ReadersTakeTurnsAndJoinCarriesOutTheRest) {
  BusyReads busy;
  std::vector<std::string> order;  // written by the one thread
  for (const std::string reader : {"a", "a", "a", "b"}) {
    busy.reads().Push(reader, [&order, reader] { order.push_back(reader); });
  }
  busy.Release();
  EXPECT_EQ(order, (std::vector<std::string>{"a", "b", "a", "a"}));
  EXPECT_EQ(busy.reads().waiting(), 0);
}

}  // namespace
}  // namespace failback
