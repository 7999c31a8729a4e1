// Parameters of queries, and when a blocking one is answered.

#include "gateway/consul/query.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback::consul {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Error(const Parameters& parameters, unsigned accepts = Query::kTags) {
  return std::string(ParseQuery(parameters, accepts, "default").status().message());
}

TEST(QueryTest, CommonParametersAreTaken) {
  const auto query = ParseQuery({{"dc", "eu"},
                                 {"index", "7"},
                                 {"wait", "30s"},
                                 {"stale", ""},
                                 {"near", "_agent"},
                                 {"tag", "a"},
                                 {"tag", "b"},
                                 {"passing", "1"}},
                                Query::kTags, "default");
  ASSERT_TRUE(query.ok()) << query.status();
  EXPECT_EQ(query->name_space, "eu");
  EXPECT_EQ(query->index, 7u);
  EXPECT_EQ(query->wait, absl::Seconds(30));
  EXPECT_THAT(query->tags, ElementsAre("a", "b"));
  EXPECT_TRUE(query->passing);
  const auto plain = ParseQuery({{"index", "0"}, {"passing", "false"}}, Query::kTags, "default");
  EXPECT_FALSE(plain->blocking);
  EXPECT_FALSE(plain->passing);
  EXPECT_EQ(plain->name_space, "default");
}

TEST(QueryTest, WhatWouldChangeTheAnswer_IsRefused) {
  EXPECT_THAT(Error({{"filter", "a==b"}}), HasSubstr("filter: is not supported here; allowed: dc"));
  EXPECT_THAT(Error({{"node-meta", "a:b"}}), HasSubstr("node-meta: is not supported"));
  EXPECT_THAT(Error({{"tag", "a"}}, Query::kNothingElse), HasSubstr("tag: is not supported"));
  EXPECT_THAT(Error({{"index", "x"}}), HasSubstr("index: \"x\" is no whole number"));
  EXPECT_THAT(Error({{"index", "-1"}}), HasSubstr("index: "));
  EXPECT_THAT(Error({{"wait", "60"}}), HasSubstr("wait: \"60\" is no duration"));
  EXPECT_THAT(Error({{"passing", "maybe"}}), HasSubstr("passing: "));
  EXPECT_THAT(Error({{"dc", "a b"}}), HasSubstr("dc: "));
}

TEST(QueryTest, ABlockingQuery_WaitsForAnotherIndex) {
  Query query;
  EXPECT_TRUE(IsDue(query, 5));
  query.blocking = true;
  query.index = 5;
  EXPECT_FALSE(IsDue(query, 5));
  EXPECT_TRUE(IsDue(query, 6));
  EXPECT_TRUE(IsDue(query, 4)) << "the client is ahead of us: it starts over";
}

TEST(QueryTest, Waits_AreBounded_AndSpreadOut) {
  EXPECT_EQ(ParseQuery({{"wait", "1h"}}, 0, "d")->wait, absl::Minutes(10));
  EXPECT_EQ(ParseQuery({{"wait", "0s"}}, 0, "d")->wait, absl::Minutes(5));
  EXPECT_EQ(ParseQuery({}, 0, "d")->wait, absl::Minutes(5));
  EXPECT_EQ(WaitWithJitter(absl::Seconds(16), 0), absl::Seconds(16));
  EXPECT_EQ(WaitWithJitter(absl::Seconds(16), 0.5), absl::Milliseconds(16500));
}

}  // namespace
}  // namespace failback::consul
