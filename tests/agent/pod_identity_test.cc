#include "agent/pod_identity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(PodIdentityTest, LabelsAreReadAsTheDownwardApiWritesThem) {
  const auto labels = ParsePodLabels(
      "app=\"orders\"\n"
      "app.kubernetes.io/version=\"1.10\"\n"
      "empty=\"\"\n"
      "odd=\"a\\\"b\\\\c\\nd\"");
  ASSERT_TRUE(labels.ok()) << labels.status();
  EXPECT_THAT(*labels, ElementsAre(Pair("app", "orders"), Pair("app.kubernetes.io/version", "1.10"),
                                   Pair("empty", ""), Pair("odd", "a\"b\\c\nd")));
  EXPECT_TRUE(ParsePodLabels("")->empty());
}

TEST(PodIdentityTest, WhatIsNoLabelIsNamedByItsLine) {
  for (const std::string bad : {"app", "=\"x\"", "app=x", "app=\"", "app=\"x", "app=\"\\q\""}) {
    EXPECT_EQ(ParsePodLabels("a=\"b\"\n" + bad).status().message(),
              "line 2: '" + bad + "' is not name=\"value\"");
  }
}

}  // namespace
}  // namespace failback
