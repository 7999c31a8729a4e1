#include "registry/server/stream_sessions.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

const absl::Time kNow = absl::FromUnixSeconds(1000);
const absl::Time kLater = kNow + absl::Seconds(10);

TEST(StreamSessionsTest, EndWithTheStreamThatRenewedThemLast) {
  StreamSessions sessions;
  for (const char* id : {"a", "b", "c"}) sessions.Opened(id, true, kNow, kLater);
  sessions.Renewed("a", 1);
  sessions.Renewed("b", 1);
  sessions.Renewed("c", 2);
  sessions.Renewed("b", 2);
  EXPECT_THAT(sessions.Ended(1), ElementsAre("a"));
  EXPECT_THAT(sessions.Ended(1), IsEmpty());
  EXPECT_THAT(sessions.Ended(2), UnorderedElementsAre("b", "c"));
  EXPECT_EQ(sessions.size(), 0u);
}

TEST(StreamSessionsTest, OthersDoNot) {
  StreamSessions sessions;
  sessions.Opened("plain", false, kNow, kLater);
  sessions.Renewed("plain", 1);
  sessions.Opened("closed", true, kNow, kLater);
  sessions.Renewed("closed", 1);
  sessions.Closed("closed");
  sessions.Opened("changed", true, kNow, kLater);
  sessions.Renewed("changed", 1);
  sessions.Opened("changed", false, kNow, kLater);
  EXPECT_THAT(sessions.Ended(1), IsEmpty());
}

TEST(StreamSessionsTest, OpeningAgainKeepsTheStream) {
  StreamSessions sessions;
  sessions.Opened("a", true, kNow, kLater);
  sessions.Renewed("a", 1);
  sessions.Opened("a", true, kLater, kLater + absl::Seconds(10));
  EXPECT_THAT(sessions.Ended(1), ElementsAre("a"));
}

TEST(StreamSessionsTest, SessionsThatWereNeverRenewedAreForgotten) {
  StreamSessions sessions;
  absl::Time now = kNow;
  for (int i = 0; i < 20000; ++i) {
    now += absl::Seconds(1);
    sessions.Opened(absl::StrCat("s", i), true, now, now + absl::Seconds(10));
  }
  EXPECT_LE(sessions.size(), 1024u);
}

}  // namespace
}  // namespace failback
