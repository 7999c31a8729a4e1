#include "registry/model/shared_limit.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

constexpr SharedLimit kLimit = {"instances", "limits.max_instances", 10};

TEST(SharedLimitTest, OneOwnerHasHalf) {
  EXPECT_EQ(kLimit.share(), 5);
  EXPECT_TRUE(kLimit.Check(4, 4).ok());
  EXPECT_TRUE(kLimit.Check(9, 4).ok());
  const absl::Status share = kLimit.Check(5, 5);
  EXPECT_EQ(share.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(share), registry::v1::ERROR_REASON_LIMIT_REACHED);
  EXPECT_EQ(ReasonMetadata(share, "limit"), "5");
  EXPECT_EQ(ReasonMetadata(share, "name"), "limits.max_instances");
  EXPECT_THAT(std::string(share.message()),
              HasSubstr("instances of one owner: at most 5 are allowed, its share of "
                        "limits.max_instances (10)"));
}

TEST(SharedLimitTest, AllTogetherHaveTheLimit) {
  const absl::Status all = kLimit.Check(10, 1);
  EXPECT_EQ(ReasonMetadata(all, "limit"), "10");
  EXPECT_THAT(std::string(all.message()),
              HasSubstr("instances (limits.max_instances): at most 10 are allowed"));
  EXPECT_EQ(ReasonMetadata(kLimit.Check(10, 9), "limit"), "10");
}

TEST(SharedLimitTest, WithoutANameOnlyTheLimitHolds) {
  EXPECT_TRUE(kLimit.Check(9, std::nullopt).ok());
  EXPECT_FALSE(kLimit.Check(10, std::nullopt).ok());
}

TEST(SharedLimitTest, NoneAndTheSmallest) {
  constexpr SharedLimit none = {"x", "y", 0};
  EXPECT_TRUE(none.Check(1000000, 1000000).ok());
  constexpr SharedLimit one = {"x", "y", 1};
  EXPECT_TRUE(one.Check(0, 0).ok());
  EXPECT_FALSE(one.Check(1, 0).ok());
  constexpr SharedLimit quarter = {"x", "y", 100, 4};
  EXPECT_EQ(quarter.share(), 25);
}

TEST(SharedLimitTest, CountsAreByOwner) {
  OwnerCounts counts;
  EXPECT_EQ(counts.Of(""), std::nullopt);
  EXPECT_EQ(counts.Of("a"), 0);
  counts.Add("a", 2);
  counts.Add("b", 1);
  counts.Add("", 7);
  EXPECT_EQ(counts.Of("a"), 2);
  EXPECT_EQ(counts.Of("b"), 1);
  EXPECT_EQ(counts.Of(""), std::nullopt);
  counts.Add("a", -2);
  counts.Add("b", -1);
  EXPECT_TRUE(counts.empty());
}

}  // namespace
}  // namespace failback
