#include "registry/model/ids.h"

#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

TEST(Ids, AreDistinctAndOfAllDigits) {
  constexpr int kIds = 1000;
  std::set<std::string> ids;
  // Bits that no id has set, or all have, were not random.
  std::string seen(32 * 4, '\0');
  for (int i = 0; i < kIds; ++i) {
    const std::string id = RandomId();
    ASSERT_EQ(id.size(), 32u) << id;
    for (size_t digit = 0; digit < id.size(); ++digit) {
      ASSERT_TRUE(absl::ascii_isxdigit(id[digit]) && !absl::ascii_isupper(id[digit])) << id;
      const int value = std::stoi(id.substr(digit, 1), nullptr, 16);
      for (int bit = 0; bit < 4; ++bit) seen[digit * 4 + bit] |= value >> bit & 1 ? 1 : 2;
    }
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(kIds));
  EXPECT_EQ(seen, std::string(32 * 4, '\3'));
}

TEST(Ids, ASessionSaysItsOwner) {
  const std::string anybodys = NewSessionId("");
  EXPECT_EQ(SessionOwner(anybodys), "");
  EXPECT_TRUE(MayResumeSession(anybodys, ""));
  EXPECT_FALSE(MayResumeSession(anybodys, "web"));
  const std::string webs = NewSessionId("web");
  EXPECT_EQ(SessionOwner(webs), "web");
  EXPECT_EQ(WithOwner(WithoutOwner(webs), "web"), webs);
  EXPECT_TRUE(MayResumeSession(webs, "web"));
  EXPECT_TRUE(MayResumeSession(webs, "")) << "a server that does not tell callers apart";
  EXPECT_FALSE(MayResumeSession(webs, "batch"));
}

}  // namespace
}  // namespace failback
