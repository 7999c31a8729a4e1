#include "registry/failback/former_owners.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

TEST(FormerOwnersTest, AnIncarnationStaysItsOwnersForAWhile) {
  FormerOwners owners(8, 100);
  owners.Leave("a", "shop", 0);
  owners.Leave("b", "", 0);
  EXPECT_EQ(owners.OwnerOf("a", 99), "shop");
  EXPECT_EQ(owners.OwnerOf("a", 100), "");
  EXPECT_EQ(owners.OwnerOf("b", 1), "") << "callers were not told apart";
  EXPECT_EQ(owners.OwnerOf("c", 1), "");
  owners.Leave("a", "shop", 50);
  EXPECT_EQ(owners.OwnerOf("a", 149), "shop");
  owners.Take("a");
  EXPECT_EQ(owners.OwnerOf("a", 60), "");
  EXPECT_EQ(owners.size(), 0);
  for (int i = 0; i < 8; ++i) owners.Leave(absl::StrCat(i), absl::StrCat("o", i), i);
  owners.Leave("x", "shop", 105);
  EXPECT_EQ(owners.size(), 3) << "what has ended makes room: of 6 and 7, and the new one";
}

TEST(FormerOwnersTest, NobodyMakesItForgetWhatIsOfOthers) {
  FormerOwners owners(8, 1000);
  owners.Leave("mine", "shop", 0);
  for (int i = 0; i < 100; ++i) owners.Leave(absl::StrCat("greedy-", i), "greedy", 1);
  EXPECT_EQ(owners.OwnerOf("mine", 2), "shop");
  EXPECT_EQ(owners.OwnerOf("greedy-99", 2), "greedy");
  EXPECT_EQ(owners.OwnerOf("greedy-98", 2), "greedy");
  EXPECT_EQ(owners.OwnerOf("greedy-97", 2), "") << "a quarter";
  EXPECT_EQ(owners.size(), 3);
  for (int i = 0; i < 5; ++i) owners.Leave(absl::StrCat(i), absl::StrCat("o", i), 3);
  ASSERT_EQ(owners.size(), 8);
  owners.Leave("more", "o3", 4);
  EXPECT_EQ(owners.OwnerOf("3", 5), "") << "its own";
  EXPECT_EQ(owners.OwnerOf("mine", 5), "shop");
  owners.Leave("first", "new", 5);
  EXPECT_EQ(owners.OwnerOf("mine", 6), "") << "what was left first of all";
  EXPECT_EQ(owners.size(), 8);
}

}  // namespace
}  // namespace failback
