// What a POST to the admin endpoint may hold.

#include <string>

#include "daemon/admin/admin_routes.h"
#include "failback/admin/v1/admin.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

template <typename Message>
absl::Status Parse(const std::string& body, Message* message) {
  http::Request request;
  request.body = body;
  return ParseBody(request, message);
}

TEST(AdminBodyTest, ABooleanIsTrueOrFalse) {
  for (const char* value : {"true", "false", "null"}) {
    admin::v1::SetEvictionGuardRequest guard;
    EXPECT_TRUE(Parse(std::string("{\"release\": ") + value + "}", &guard).ok()) << value;
    EXPECT_EQ(guard.release(), std::string(value) == "true");
  }
  for (const char* value : {"\"yes\"", "\"t\"", "\"true\"", "\"1\"", "\"on\"", "1", "{}", "[]"}) {
    admin::v1::SetEvictionGuardRequest guard;
    const absl::Status status = Parse(std::string("{\"release\": ") + value + "}", &guard);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << value;
  }
  admin::v1::SetEvictionGuardRequest guard;
  EXPECT_THAT(std::string(Parse(R"({"by": "me", "enabled": "no"})", &guard).message()),
              HasSubstr("enabled: \"no\" is not one of true, false"));
}

TEST(AdminBodyTest, WhatIsNoBooleanIsAsProtobufHasIt) {
  agent::v1::CancelRequest cancel;
  ASSERT_TRUE(Parse(R"({"selector": {"ids": ["yes"]}, "all": false})", &cancel).ok());
  EXPECT_EQ(cancel.selector().ids(0), "yes");
  agent::v1::DrainRequest drain;
  EXPECT_TRUE(Parse(R"({"deadline": "10s"})", &drain).ok());
  EXPECT_TRUE(Parse("", &drain).ok());
  EXPECT_FALSE(Parse("{\"nothing\": true}", &drain).ok());
}

}  // namespace
}  // namespace failback
