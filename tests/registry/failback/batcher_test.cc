#include "registry/failback/batcher.h"

#include <deque>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace failback {
namespace {

struct Named : StageLink {
  OperationKind kind() const { return kind_; }
  size_t sent_bytes() const { return bytes_; }
  bool goes_alone() const { return alone_; }

  std::string name;
  OperationKind kind_ = OperationKind::kRegister;
  size_t bytes_ = 10;
  bool alone_ = false;
};

class BatcherTest : public testing::Test {
 protected:
  Named* Push(const std::string& name, OperationKind kind = OperationKind::kRegister) {
    Named& named = all_.emplace_back();
    named.name = name;
    named.kind_ = kind;
    batcher_.Push(&named);
    return &named;
  }
  // The names of the next batch.
  std::string Next(size_t max_items = 100, size_t max_bytes = 1000) {
    std::string names;
    for (const Named* named : batcher_.Next({max_items, max_bytes})) names += named->name;
    return names;
  }

  std::deque<Named> all_;
  Batcher<Named> batcher_;
};

TEST_F(BatcherTest, OneKindGoesInOneBatchInOrder) {
  for (const char* name : {"a", "b", "c"}) Push(name);
  EXPECT_FALSE(batcher_.empty());
  EXPECT_EQ(Next(), "abc");
  EXPECT_TRUE(batcher_.empty());
  EXPECT_EQ(Next(), "");
}

TEST_F(BatcherTest, KindsTakeTurnsAlsoWhereTheyAlternate) {
  for (const char* name : {"a", "b", "c"}) {
    Push(name);
    Push(std::string("-") + name, OperationKind::kUnregister);
  }
  EXPECT_EQ(Next(2), "ab");
  EXPECT_EQ(Next(2), "-a-b");
  EXPECT_EQ(Next(2), "c");
  EXPECT_EQ(Next(2), "-c");
}

TEST_F(BatcherTest, ThePreferredKindIsFirst) {
  Push("a");
  Push("-a", OperationKind::kUnregister);
  batcher_.Prefer(OperationKind::kUnregister);
  EXPECT_EQ(Next(), "-a");
}

TEST_F(BatcherTest, ABatchEndsBelowItsBytesButOneRecordAlwaysGoes) {
  Push("a")->bytes_ = 5000;
  for (const char* name : {"b", "c", "d"}) Push(name)->bytes_ = 400;
  EXPECT_EQ(Next(), "a");
  EXPECT_EQ(Next(), "bc");
  EXPECT_EQ(Next(), "d");
}

TEST_F(BatcherTest, WhatGoesAloneEndsTheBatchBeforeItAndSharesNone) {
  Push("a");
  Push("b")->alone_ = true;
  Push("c");
  EXPECT_EQ(Next(), "a");
  EXPECT_EQ(Next(), "b");
  EXPECT_EQ(Next(), "c");
}

TEST_F(BatcherTest, WhatHasAnotherKindNowGoesToTheEndOfThatQueue) {
  Named* const a = Push("a");
  Push("b");
  Push("-c", OperationKind::kUnregister);
  a->kind_ = OperationKind::kUnregister;
  EXPECT_EQ(Next(), "b");
  EXPECT_EQ(Next(), "-ca");
}

TEST_F(BatcherTest, WhatGoesToAQueueThatWasLookedAtAlreadyIsFound) {
  Named* const a = Push("a", OperationKind::kUnregister);
  a->kind_ = OperationKind::kRegister;
  batcher_.Prefer(OperationKind::kUnregister);
  EXPECT_EQ(Next(), "a");
}

TEST_F(BatcherTest, WhatLeavesTheQueueIsNotSent) {
  Push("a")->Unlink();
  EXPECT_TRUE(batcher_.empty());
  Push("b");
  Push("c");
  EXPECT_EQ(batcher_.Pop()->name, "b");
  int left = 0;
  batcher_.ForEach([&](const Named*) { ++left; });
  EXPECT_EQ(left, 1);
  batcher_.Clear();
  EXPECT_EQ(batcher_.Pop(), nullptr);
}

}  // namespace
}  // namespace failback
