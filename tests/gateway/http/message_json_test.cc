#include "gateway/http/message_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "failback/agent/v1/agent.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

// A pending table whose first row was refused so, and whose second has no status.
agent::v1::ListPendingResponse Parked(const absl::Status& status) {
  agent::v1::ListPendingResponse response;
  agent::v1::PendingOperation& row = *response.add_operations();
  row.set_id("register default/orders/orders-1");
  *row.mutable_last_status() = StatusToProto(status);
  response.add_operations()->set_id("register default/orders/orders-2");
  return response;
}

std::string Json(const google::protobuf::Message& message) {
  const absl::StatusOr<std::string> json = MessageJson(message);
  EXPECT_TRUE(json.ok()) << json.status();
  return json.ok() ? *json : "";
}

TEST(MessageJsonTest, StatusWithDetails_IsWrittenWithThem) {
  const absl::Status denied = WithRetryDelay(
      Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED, "may not", {{"permission", "REGISTER"}}),
      absl::Seconds(3));
  const std::string json = Json(Parked(denied));
  EXPECT_THAT(json, HasSubstr(R"("@type":"type.googleapis.com/google.rpc.ErrorInfo")"));
  EXPECT_THAT(json, HasSubstr(R"("reason":"ACCESS_DENIED")"));
  EXPECT_THAT(json, HasSubstr(R"("metadata":{"permission":"REGISTER"})"));
  EXPECT_THAT(json, HasSubstr(R"("retryDelay":"3s")"));
  EXPECT_THAT(json, HasSubstr("orders-2"));
}

TEST(MessageJsonTest, FieldViolations_AreWritten) {
  const std::string json = Json(Parked(InvalidField("instance.port", "70000 is not in 1..65535")));
  EXPECT_THAT(json, HasSubstr(R"("fieldViolations":[{"field":"instance.port")"));
}

TEST(MessageJsonTest, DetailOfUnknownType_IsItsTypeAndBytes) {
  absl::Status status = absl::InternalError("x");
  status.SetPayload("type.googleapis.com/acme.Unknown", absl::Cord("\x08\x01"));
  status.SetPayload("no url at all", absl::Cord("\xff\xff"));
  const std::string json = Json(Parked(status));
  EXPECT_THAT(json, HasSubstr(R"({"@type":"type.googleapis.com/acme.Unknown","value":"CAE="})"));
  EXPECT_THAT(json, HasSubstr(R"({"@type":"no url at all","value":"//8="})"));
  EXPECT_THAT(json, HasSubstr("orders-2"));
}

TEST(MessageJsonTest, DetailThatIsNoMessageOfItsType_IsItsTypeAndBytes) {
  absl::Status status = absl::InternalError("x");
  status.SetPayload("type.googleapis.com/google.rpc.ErrorInfo", absl::Cord("\xff"));
  status.SetPayload("type.googleapis.com/google.protobuf.Duration", absl::Cord("\x08"));
  const std::string json = Json(Parked(status));
  EXPECT_THAT(
      json,
      HasSubstr(
          R"({"@type":"unreadable/type.googleapis.com/google.rpc.ErrorInfo","value":"/w=="})"));
  EXPECT_THAT(json, HasSubstr("google.protobuf.Duration"));
  EXPECT_THAT(json, HasSubstr("orders-2"));
}

TEST(MessageJsonTest, DetailsWithinDetails_AreNotLookedInto) {
  rpc::v1::Status inner;
  for (int depth = 0; depth < 2000; ++depth) {
    rpc::v1::Status outer;
    google::protobuf::Any& detail = *outer.add_details();
    detail.set_type_url("type.googleapis.com/failback.rpc.v1.Status");
    detail.set_value(inner.SerializeAsString());
    inner = outer;
  }
  EXPECT_THAT(Json(inner), HasSubstr("unreadable/"));
}

TEST(MessageJsonTest, DetailWithoutType_DoesNotFail) {
  rpc::v1::Status status;
  status.add_details()->set_value("x");
  EXPECT_THAT(Json(status), HasSubstr("details"));
}

TEST(MessageJsonTest, Pretty_HasLines) {
  const absl::StatusOr<std::string> json =
      MessageJson(Parked(absl::OkStatus()), JsonStyle::kPretty);
  ASSERT_TRUE(json.ok());
  EXPECT_THAT(*json, HasSubstr("\n "));
  EXPECT_NE(json->back(), '\n');
}

}  // namespace
}  // namespace failback
