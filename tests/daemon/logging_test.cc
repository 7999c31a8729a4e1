#include "daemon/logging.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "grpc/support/log.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(LoggingTest, JsonLinesHaveTheEventAndItsFields) {
  const std::string line = FormatLogJson("2026-01-31T12:00:00.000Z", LogLevel::kWarning, "parked",
                                         {{"service", "a \"b\"\n\xff"}, {"times", "3"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  google::protobuf::Struct parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &parsed).ok()) << line;
  EXPECT_EQ(parsed.fields().at("level").string_value(), "warning");
  EXPECT_EQ(parsed.fields().at("event").string_value(), "parked");
  EXPECT_EQ(parsed.fields().at("times").string_value(), "3");
  EXPECT_THAT(parsed.fields().at("service").string_value(), HasSubstr("a \"b\"\n"));
}

TEST(LoggingTest, LinesGoToStderrInTheFormatAndFromTheLevelAskedFor) {
  config::v1::Log config;
  config.set_level(config::v1::LOG_LEVEL_INFO);
  config.set_format(config::v1::LOG_FORMAT_TEXT);
  ::testing::internal::CaptureStderr();
  InstallLogging(config);
  Log(LogLevel::kDebug, "dropped");
  gpr_log_verbosity_init();  // as grpc_init does
  gpr_log(GPR_ERROR, "dropped too");
  Log(LogLevel::kInfo, "registered {}", {{"service", "orders"}});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              MatchesRegex("[0-9-]+T[0-9:.]+Z info    registered \\{\\} service=orders\n"));

  config.set_level(config::v1::LOG_LEVEL_DEBUG);
  config.set_format(config::v1::LOG_FORMAT_JSON);
  ::testing::internal::CaptureStderr();
  InstallLogging(config);
  gpr_log(GPR_ERROR, "from %s", "gRPC");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("\"level\":\"debug\",\"event\":\"grpc\",\"severity\":\"E\""));
  SetLogSink(LogLevel::kWarning, nullptr);
}

TEST(LoggingTest, WhatLibprotobufSaysIsAWarningInMeasure) {
  config::v1::Log config;
  config.set_level(config::v1::LOG_LEVEL_INFO);
  config.set_format(config::v1::LOG_FORMAT_TEXT);
  ::testing::internal::CaptureStderr();
  InstallLogging(config);
  google::protobuf::Value no_utf8;
  // A field of text with bytes that are none.
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(no_utf8.ParseFromString("\x1a\x01\xff"));
  const std::string err = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(err, HasSubstr("warning protobuf"));
  EXPECT_THAT(err, Not(HasSubstr("libprotobuf")));
  EXPECT_LT(std::count(err.begin(), err.end(), '\n'), 40);
  SetLogSink(LogLevel::kWarning, nullptr);
}

}  // namespace
}  // namespace failback
