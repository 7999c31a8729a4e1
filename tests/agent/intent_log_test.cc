// The log of an agent whose registry is unavailable for long: every change of state is there or
// counted, and the lines are few.

#include "agent/intent_log.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

struct Line {
  LogLevel level;
  std::string event;
  std::map<std::string, std::string> fields;
};

class IntentLogTest : public FailbackTest {
 protected:
  IntentLogTest() {
    log_ = std::make_unique<IntentLog>(timer_.get());
    options_.on_event = [this](const IntentEvent& event) {
      ++happened_[event.kind];
      log_->Record(event);
    };
    LogFrom(LogLevel::kInfo);
  }

  ~IntentLogTest() override {
    registry_.reset();
    log_.reset();
    SetLogSink(LogLevel::kWarning, nullptr);
  }

  void LogFrom(LogLevel level) {
    SetLogSink(level, [this](LogLevel level, const std::string& event, const LogFields& fields) {
      lines_.push_back({level, event, {fields.begin(), fields.end()}});
    });
  }

  // Lines of `event`, and what lines say was left out of it.
  int64_t Accounted(const std::string& event) const {
    int64_t count = 0;
    for (const Line& line : lines_) {
      int64_t left_out = 0;
      if (line.event == event) ++count;
      if (line.event != "left out" || line.fields.at("of") != event) continue;
      EXPECT_TRUE(absl::SimpleAtoi(line.fields.at("count"), &left_out));
      count += left_out;
    }
    return count;
  }

  size_t Count(const std::string& event) const {
    return std::count_if(lines_.begin(), lines_.end(),
                         [&](const Line& line) { return line.event == event; });
  }

  std::unique_ptr<IntentLog> log_;
  std::map<IntentEvent::Kind, int64_t> happened_;
  std::vector<Line> lines_;
};

TEST_F(IntentLogTest, AnOutageOfHoursIsToldInFewLinesAndNoneIsLost) {
  Back("session-1");
  Start();
  Advance(absl::Seconds(1));
  for (int i = 0; i < 300; ++i) Register("before-" + std::to_string(i));
  Advance(absl::Minutes(1));
  ASSERT_EQ(happened_[IntentEvent::Kind::kAcknowledged], 300);
  EXPECT_EQ(Accounted("acknowledged"), 300);
  EXPECT_EQ(Count("acknowledged"), 100u);

  lines_.clear();
  happened_.clear();
  GoAway();
  for (int i = 0; i < 300; ++i) {
    Register("during-" + std::to_string(i));
    if (i % 30 == 0) Advance(absl::Seconds(1));
  }
  Advance(absl::Hours(2));
  EXPECT_EQ(happened_[IntentEvent::Kind::kRetrying], 300);
  EXPECT_EQ(Accounted("retrying"), 300);
  EXPECT_EQ(Count("registry away"), 1u);
  // However long it lasts: two windows' lines, their summaries, and the registry's absence.
  EXPECT_LE(lines_.size(), 210u);

  lines_.clear();
  Back("session-2");
  Advance(absl::Minutes(10));
  EXPECT_EQ(Accounted("acknowledged"), happened_[IntentEvent::Kind::kAcknowledged]);
  EXPECT_GE(happened_[IntentEvent::Kind::kAcknowledged], 300);
  EXPECT_LE(lines_.size(), 310u);
  ASSERT_EQ(Count("registry back"), 1u);
  const auto back = std::find_if(lines_.begin(), lines_.end(),
                                 [](const Line& line) { return line.event == "registry back"; });
  EXPECT_EQ(back->fields.at("session"), "new");
  EXPECT_EQ(back->fields.at("away").substr(0, 2), "2h");
}

TEST_F(IntentLogTest, AnEventHasItsFields) {
  options_.retry.retry_times = 1;
  options_.retry.retry_period = absl::Seconds(5);
  fake_->opens.AnswerWith([](const auto&) { return Opened("session-1"); });
  fake_->registers.AnswerWith(
      [](const auto&) { return absl::Status(absl::StatusCode::kAborted, "not now"); });
  Start();
  Advance(absl::Seconds(1));
  lines_.clear();
  Register("orders-1");
  Advance(absl::Minutes(1));
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_[0].event, "retrying");
  EXPECT_EQ(lines_[0].level, LogLevel::kInfo);
  EXPECT_THAT(
      lines_[0].fields,
      ElementsAre(Pair("code", "ABORTED"), Pair("generation", "1"), Pair("instance", "orders-1"),
                  Pair("message", "not now"), Pair("namespace", "default"),
                  Pair("operation", "register"), Pair("service", "orders"), Pair("times", "1"),
                  Pair("upstream", "grpc://fake")));
  EXPECT_EQ(lines_[1].event, "parked");
  EXPECT_EQ(lines_[1].level, LogLevel::kWarning);
  EXPECT_EQ(lines_[1].fields.at("code"), "ABORTED");
}

TEST_F(IntentLogTest, WhatIsLeftOutIsThereAtDebugAndCountedAtTheEnd) {
  LogFrom(LogLevel::kDebug);
  IntentEvent event;
  event.kind = IntentEvent::Kind::kParked;
  event.operation = OperationKind::kSubscribe;
  event.id = "subscribe orders";
  for (int i = 0; i < 103; ++i) log_->Record(event);
  EXPECT_EQ(lines_.size(), 103u);
  EXPECT_EQ(lines_[102].level, LogLevel::kDebug);
  EXPECT_EQ(lines_[102].fields.at("id"), "subscribe orders");
  log_.reset();
  ASSERT_EQ(lines_.size(), 104u);
  EXPECT_EQ(lines_[103].level, LogLevel::kWarning);
  EXPECT_EQ(lines_[103].fields.at("count"), "3");
}

}  // namespace
}  // namespace failback
