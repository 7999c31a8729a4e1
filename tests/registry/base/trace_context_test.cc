#include "registry/base/trace_context.h"

#include <map>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"

namespace failback {
namespace {

constexpr char kTrace[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kOther[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

TEST(TraceContextTest, OnlyWhatTheStandardAllows) {
  EXPECT_TRUE(IsTraceParent(kTrace));
  for (const std::string text :
       {"", "00", "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01"}) {
    EXPECT_FALSE(IsTraceParent(text)) << text;
  }
}

TEST(TraceContextTest, ScopesNestAndBelongToTheirThread) {
  EXPECT_EQ(CurrentTrace(), "");
  {
    const ScopedTrace outer(kTrace);
    EXPECT_EQ(CurrentTrace(), kTrace);
    {
      const ScopedTrace inner(kOther);
      EXPECT_EQ(CurrentTrace(), kOther);
      const ScopedTrace none("junk");
      EXPECT_EQ(CurrentTrace(), "");
    }
    EXPECT_EQ(CurrentTrace(), kTrace);
    std::thread([] { EXPECT_EQ(CurrentTrace(), ""); }).join();
  }
  EXPECT_EQ(CurrentTrace(), "");
}

TEST(TraceContextTest, EventsInTheLogHaveIt) {
  LogFields seen;
  SetLogSink(LogLevel::kInfo,
             [&](LogLevel, const std::string&, const LogFields& fields) { seen = fields; });
  Log(LogLevel::kInfo, "event", {{"a", "b"}});
  EXPECT_EQ(seen.size(), 1u);
  {
    const ScopedTrace trace(kTrace);
    Log(LogLevel::kInfo, "event", {{"a", "b"}});
  }
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1], (std::pair<std::string, std::string>(kTraceParent, kTrace)));
  SetLogSink(LogLevel::kWarning, nullptr);
}

}  // namespace
}  // namespace failback
