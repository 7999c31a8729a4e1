#include "registry/failback/journal_gate.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace failback {
namespace {

using Named = std::shared_ptr<const std::string>;
using Gate = JournalGate<Named, Named>;

Named Name(const std::string& name) { return std::make_shared<const std::string>(name); }

std::string Records(Gate* gate) {
  std::string names;
  while (const Named record = gate->TakeRecord()) names += *record;
  return names;
}

std::string Replies(Gate* gate) {
  std::string names;
  while (const Named reply = gate->TakeReply()) names += *reply;
  return names;
}

TEST(JournalGateTest, WithoutAWriteAllMayGo) {
  Gate gate;
  EXPECT_TRUE(gate.MaySend(0));
  EXPECT_FALSE(gate.Await(Name("a")));
  EXPECT_EQ(Records(&gate), "");
  EXPECT_EQ(Replies(&gate), "");
}

TEST(JournalGateTest, RecordsAndRepliesComeInTheOrderOfTheirWrites) {
  Gate gate;
  gate.Queued(1, Name("a"));
  EXPECT_TRUE(gate.Await(Name("x")));
  gate.Queued(2, Name("b"));
  gate.Queued(3);
  EXPECT_TRUE(gate.Await(Name("y")));
  EXPECT_FALSE(gate.MaySend(1));
  EXPECT_EQ(Records(&gate), "") << "nothing was reported yet";
  gate.Tried(2, /*durable=*/true);
  EXPECT_TRUE(gate.MaySend(2));
  EXPECT_FALSE(gate.MaySend(3));
  EXPECT_EQ(Replies(&gate), "x") << "y waits for the third";
  EXPECT_EQ(Records(&gate), "ab");
  gate.Tried(3, /*durable=*/true);
  EXPECT_EQ(Replies(&gate), "y");
  EXPECT_EQ(Records(&gate), "");
  EXPECT_FALSE(gate.Await(Name("z"))) << "all is durable";
}

TEST(JournalGateTest, WhatWasTriedInVainMayBeSentAndIsAnsweredByTheNextAttempt) {
  Gate gate;
  gate.Queued(1, Name("a"));
  gate.Await(Name("x"));
  gate.Tried(1, /*durable=*/false);
  EXPECT_TRUE(gate.MaySend(1));
  EXPECT_EQ(Replies(&gate), "x");
  EXPECT_EQ(Records(&gate), "a");
  EXPECT_TRUE(gate.Await(Name("y"))) << "it is not durable";
  gate.Tried(1, /*durable=*/true);
  EXPECT_EQ(Replies(&gate), "y");
  EXPECT_FALSE(gate.Await(Name("z")));
}

TEST(JournalGateTest, ARecordThatIsWrittenTwiceComesTwice) {
  Gate gate;
  const Named record = Name("a");
  gate.Queued(1, record);
  gate.Queued(2, record);
  gate.Tried(1, true);
  EXPECT_EQ(Records(&gate), "a");
  EXPECT_FALSE(gate.MaySend(2)) << "its newest write decides";
  gate.Tried(2, true);
  EXPECT_EQ(Records(&gate), "a");
}

TEST(JournalGateTest, AfterTheEndRepliesComeAndRecordsDoNot) {
  Gate gate;
  gate.Queued(1, Name("a"));
  gate.Await(Name("x"));
  gate.Tried(gate.last(), false);
  gate.ForgetRecords();
  EXPECT_EQ(Replies(&gate), "x");
  EXPECT_EQ(Records(&gate), "");
}

}  // namespace
}  // namespace failback
