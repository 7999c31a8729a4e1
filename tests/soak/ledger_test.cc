#include "tests/soak/ledger.h"

#include "gtest/gtest.h"

namespace failback {
namespace {

class LedgerTest : public ::testing::Test {
 protected:
  Ledger ledger_;
  View view_{&ledger_};
};

TEST_F(LedgerTest, VersionsAreSeenInOrderAndMayBeSkipped) {
  EXPECT_EQ(ledger_.Intend("a", true), 1u);
  EXPECT_EQ(ledger_.Intend("a", true), 2u);
  EXPECT_EQ(ledger_.Intend("a", false), 3u);
  EXPECT_EQ(ledger_.Intend("a", true), 4u);
  EXPECT_TRUE(view_.SeePresent("a", 1).ok());
  EXPECT_TRUE(view_.SeeGone("a").ok());
  EXPECT_TRUE(view_.SeePresent("a", 4).ok());
  EXPECT_EQ(ledger_.Present(), (std::map<std::string, size_t>{{"a", 4}}));
}

TEST_F(LedgerTest, AnOlderStateIsNoticed) {
  ledger_.Intend("a", true);
  ledger_.Intend("a", true);
  EXPECT_TRUE(view_.SeePresent("a", 2).ok());
  EXPECT_FALSE(view_.SeePresent("a", 1).ok());
}

TEST_F(LedgerTest, AResurrectedInstanceIsNoticed) {
  ledger_.Intend("a", true);
  ledger_.Intend("a", false);
  EXPECT_TRUE(view_.SeePresent("a", 1).ok());
  EXPECT_TRUE(view_.SeeGone("a").ok());
  EXPECT_FALSE(view_.SeePresent("a", 1).ok());
}

TEST_F(LedgerTest, ALostInstanceIsNoticed) {
  ledger_.Intend("a", false);
  ledger_.Intend("a", true);
  EXPECT_TRUE(view_.SeePresent("a", 2).ok());
  EXPECT_FALSE(view_.SeeGone("a").ok());
}

TEST_F(LedgerTest, WhatNobodyAskedForIsNoticed) {
  EXPECT_FALSE(view_.SeePresent("a", 1).ok());
  ledger_.Intend("a", false);
  EXPECT_FALSE(view_.SeePresent("a", 1).ok());
}

}  // namespace
}  // namespace failback
