#include "registry/base/version.h"

#include <string>

#include "gtest/gtest.h"

namespace failback {
namespace {

TEST(VersionTest, LibraryIsOfItsHeadersVersion) { EXPECT_STREQ(Version(), kVersion); }

// tests/package sees that of a build that has one.
TEST(VersionTest, LineHasNoRevisionWhereTheBuildNamesNone) {
  const std::string revision = Revision();
  EXPECT_EQ(VersionLine("failbackctl"), std::string("failbackctl ") + kVersion +
                                            (revision.empty() ? "" : " (" + revision + ")"));
}

}  // namespace
}  // namespace failback
