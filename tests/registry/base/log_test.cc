#include "registry/base/log.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { SetLogSink(LogLevel::kWarning, nullptr); }
};

TEST_F(LogTest, SinkGetsEventAndFieldsOfItsLevelAndAbove) {
  std::vector<std::pair<LogLevel, std::string>> seen;
  LogFields fields_seen;
  SetLogSink(LogLevel::kInfo, [&](LogLevel level, const std::string& event, const LogFields& f) {
    seen.emplace_back(level, event);
    fields_seen = f;
  });
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
  Log(LogLevel::kDebug, "below");
  Log(LogLevel::kInfo, "registered", {{"service", "orders"}, {"generation", "7"}});
  EXPECT_THAT(seen, ElementsAre(Pair(LogLevel::kInfo, "registered")));
  EXPECT_THAT(fields_seen, ElementsAre(Pair("service", "orders"), Pair("generation", "7")));
  Log(LogLevel::kError, "broken");
  EXPECT_THAT(seen,
              ElementsAre(Pair(LogLevel::kInfo, "registered"), Pair(LogLevel::kError, "broken")));
}

TEST_F(LogTest, DefaultWritesOnlyWarningsAndErrorsToStderr) {
  SetLogSink(LogLevel::kDebug, [](LogLevel, const std::string&, const LogFields&) {});
  SetLogSink(LogLevel::kDebug, nullptr);
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "quiet");
  Log(LogLevel::kWarning, "upstream lost", {{"uri", "grpc://127.0.0.1:7070"}});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "failback: warning: upstream lost uri=grpc://127.0.0.1:7070\n");
}

TEST_F(LogTest, ValuesThatWouldBreakTheLineAreQuoted) {
  EXPECT_EQ(FormatLogLine("event", {}), "event");
  EXPECT_EQ(FormatLogLine("event", {{"plain", "a/b:1"}, {"empty", ""}, {"space", "a b"}}),
            "event plain=a/b:1 empty=\"\" space=\"a b\"");
  EXPECT_EQ(FormatLogLine("event", {{"lines", "a\nb"}, {"quote", "\"x\""}, {"utf8", "ä ö"}}),
            "event lines=\"a\\nb\" quote=\"\\\"x\\\"\" utf8=\"ä ö\"");
  EXPECT_EQ(FormatLogLine("event", {{"single", "'' it's"}, {"slashes", "\\' \\\\'"}}),
            "event single=\"'' it's\" slashes=\"\\\\' \\\\\\\\'\"");
  EXPECT_EQ(FormatLogLine("event", {{"c1", "a\xc2\x9b"}, {"bidi", "\xe2\x80\xaez\xe2\x80\xa8"}}),
            "event c1=\"a\\u009b\" bidi=\"\\u202ez\\u2028\"");
  EXPECT_EQ(FormatLogLine("event", {{"broken", "8-bit \x9b"}}), "event broken=\"8-bit ?\"");
}

TEST_F(LogTest, ValuesOfAnyLengthAreCutAfterAWholeCharacter) {
  LogFields seen;
  SetLogSink(LogLevel::kInfo,
             [&](LogLevel, const std::string&, const LogFields& fields) { seen = fields; });
  const std::string ascii(kMaxLogValue, 'x');
  std::string umlauts = "x";  // its bytes at even places continue a character
  while (umlauts.size() < 4 * kMaxLogValue) umlauts += "ä";
  const std::string no_utf8(1 << 20, '\x80');
  Log(LogLevel::kInfo, "event", {{"fits", ascii}, {"text", umlauts}, {"bytes", no_utf8}});
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].second, ascii);
  EXPECT_EQ(seen[1].second, umlauts.substr(0, kMaxLogValue - 1) + "… (2049 bytes)");
  EXPECT_EQ(seen[2].second, no_utf8.substr(0, kMaxLogValue) + "… (1048576 bytes)");
}

TEST_F(LogTest, AThrottleLetsTenLinesASecondThroughAndCountsTheOthers) {
  static absl::Time now;
  now = absl::UnixEpoch();
  std::vector<LogFields> seen;
  SetLogSink(LogLevel::kInfo, [&](LogLevel, const std::string&, const LogFields& fields) {
    seen.push_back(fields);
  });
  LogThrottle throttle([] { return now; });
  for (int i = 0; i < 1000; ++i) throttle.Log(LogLevel::kInfo, "event", {{"a", "b"}});
  EXPECT_THAT(seen, AllOf(SizeIs(10), Each(ElementsAre(Pair("a", "b")))));
  now += absl::Seconds(1);
  throttle.Log(LogLevel::kInfo, "event", {{"a", "b"}});
  EXPECT_THAT(seen.back(), ElementsAre(Pair("a", "b"), Pair("left_out", "990")));
  throttle.Log(LogLevel::kInfo, "event", {{"a", "b"}});
  EXPECT_THAT(seen.back(), ElementsAre(Pair("a", "b")));
}

TEST_F(LogTest, ACallerWhoCausesManyLinesHidesNoOthers) {
  static absl::Time now;
  now = absl::UnixEpoch();
  std::vector<LogFields> seen;
  SetLogSink(LogLevel::kInfo, [&](LogLevel, const std::string&, const LogFields& fields) {
    seen.push_back(fields);
  });
  LogThrottle throttle([] { return now; });
  for (int i = 0; i < 1000; ++i) throttle.LogFor("loud", LogLevel::kInfo, "event", {{"a", "loud"}});
  EXPECT_THAT(seen, AllOf(SizeIs(10), Each(ElementsAre(Pair("a", "loud")))));
  throttle.LogFor("other", LogLevel::kInfo, "event", {{"a", "other"}});
  EXPECT_THAT(seen.back(), ElementsAre(Pair("a", "other"), Pair("left_out", "990")));
  for (int i = 0; i < 1000; ++i) {
    throttle.LogFor("caller " + std::to_string(i), LogLevel::kInfo, "event", {{"a", "b"}});
  }
  EXPECT_EQ(seen.size(), 30u) << "of all together";
  now += absl::Seconds(1);
  throttle.LogFor("loud", LogLevel::kInfo, "event", {{"a", "loud"}});
  EXPECT_THAT(seen.back(), ElementsAre(Pair("a", "loud"), Pair("left_out", "981")));
}

TEST_F(LogTest, SinkMayReplaceItselfWhileItRuns) {
  int old_calls = 0;
  int new_calls = 0;
  SetLogSink(LogLevel::kInfo, [&](LogLevel, const std::string&, const LogFields&) {
    ++old_calls;
    SetLogSink(LogLevel::kInfo,
               [&](LogLevel, const std::string&, const LogFields&) { ++new_calls; });
  });
  Log(LogLevel::kInfo, "one");
  Log(LogLevel::kInfo, "two");
  EXPECT_EQ(old_calls, 1);
  EXPECT_EQ(new_calls, 1);
}

}  // namespace
}  // namespace failback
