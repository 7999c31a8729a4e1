#include "registry/model/wire_bounds.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/registry.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

constexpr WireBounds kTen{1000, 10};

absl::Status Check(const std::string& bytes, const WireBounds& bounds = kTen) {
  return CheckWire(*ListRequest::descriptor(), bytes, bounds);
}

void ExpectTooLarge(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_TOO_LARGE);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

constexpr char kTooMany[] = "the ListRequest has more fields, at most 10 are allowed";

TEST(WireBoundsTest, BytesAreCounted) {
  EXPECT_TRUE(Check(std::string(1000, '\x08'), {1000, 500}).ok());
  ExpectTooLarge(Check(std::string(1001, '\x08')),
                 "the ListRequest has 1001 bytes, at most 1000 are allowed");
}

TEST(WireBoundsTest, FieldsAreCountedInAllMessages) {
  ListRequest request;
  request.set_page_size(1);  // one, and the selector is another
  for (int i = 0; i < 8; ++i) request.mutable_selector()->add_zones("z");
  EXPECT_TRUE(Check(request.SerializeAsString()).ok());
  request.mutable_selector()->set_service("s");
  ExpectTooLarge(Check(request.SerializeAsString()), kTooMany);
}

TEST(WireBoundsTest, EntriesOfMapsAreMessages) {
  ListRequest request;
  auto& metadata = *request.mutable_selector()->mutable_metadata();
  metadata["a"] = metadata["b"] = metadata["c"] = "v";  // three fields each
  EXPECT_TRUE(Check(request.SerializeAsString()).ok());
  metadata["d"] = "v";
  ExpectTooLarge(Check(request.SerializeAsString()), kTooMany);
}

TEST(WireBoundsTest, ValuesOfPackedFieldsAreFields) {
  ListRequest request;
  for (int i = 0; i < 8; ++i) {
    request.mutable_selector()->add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  }
  EXPECT_TRUE(Check(request.SerializeAsString()).ok());
  request.mutable_selector()->add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  ExpectTooLarge(Check(request.SerializeAsString()), kTooMany);
}

TEST(WireBoundsTest, UnknownFieldsAreCounted) {
  std::string bytes;
  for (int i = 0; i < 10; ++i) bytes += "\xf8\x07\x01";  // number 127
  EXPECT_TRUE(Check(bytes).ok());
  ExpectTooLarge(Check(bytes + "\xf8\x07\x01"), kTooMany);
}

// What follows an unknown group is known as before.
TEST(WireBoundsTest, GroupsHideNothing) {
  ListRequest request;
  for (int i = 0; i < 8; ++i) request.mutable_selector()->add_zones("z");
  const std::string group = "\xfb\x07\xfc\x07";  // it begins and ends: two of ten
  ExpectTooLarge(Check(group + request.SerializeAsString()), kTooMany);
  ListRequest parsed;
  EXPECT_TRUE(parsed.ParseFromString(group + request.SerializeAsString()));
  EXPECT_EQ(parsed.selector().zones_size(), 8);
}

TEST(WireBoundsTest, WhatIsNoMessageIsLeftToTheParser) {
  for (const std::string& bytes :
       {std::string("\x07"), std::string("\xff\xff\xff"), std::string("\x0a\x05x"),
        std::string("\x0c"), std::string(11, '\xff'), std::string("\x0d\x01")}) {
    EXPECT_TRUE(Check(bytes).ok());
    EXPECT_FALSE(ListRequest().ParseFromString(bytes));
  }
}

}  // namespace
}  // namespace failback
