#include "gateway/http/message_json.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "failback/admin/v1/admin.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/agent/v1/config.pb.h"
#include "failback/gateway/v1/gateway.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/any.pb.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::google::protobuf::util::MessageDifferencer;
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

// --- The same as protobuf's own, of random messages.

class RandomMessages {
 public:
  std::unique_ptr<Message> Make(const Message& prototype) {
    std::unique_ptr<Message> message(prototype.New());
    Fill(message.get(), 0);
    return message;
  }

 private:
  void Fill(Message* message, int depth) {
    if (auto* duration = dynamic_cast<google::protobuf::Duration*>(message)) {
      duration->set_seconds(random_.Pick(100000));
      duration->set_nanos(random_.Pick(4) * 1000 * random_.Pick(1000));
      return;
    }
    if (auto* time = dynamic_cast<google::protobuf::Timestamp*>(message)) {
      time->set_seconds(random_.Pick(2000000000));
      time->set_nanos(random_.Pick(2) * random_.Pick(1000000000));
      return;
    }
    const auto& type = *message->GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (field.message_type() == google::protobuf::Any::descriptor()) continue;
      const int times = field.is_repeated() ? random_.Pick(3) : random_.Pick(2);
      if (field.message_type() != nullptr && depth > 4) continue;
      for (int time = 0; time < times; ++time) Set(message, field, depth);
    }
  }

  template <typename Value, typename Setter, typename Adder>
  static void Put(Message* message, const FieldDescriptor& field, Value value, Setter set,
                  Adder add) {
    const Reflection& reflection = *message->GetReflection();
    if (field.is_repeated()) {
      (reflection.*add)(message, &field, value);
    } else {
      (reflection.*set)(message, &field, value);
    }
  }

  std::string Text() {
    static const char* const kParts[] = {"a",
                                         "Z",
                                         "\"",
                                         "\\",
                                         "/",
                                         "<",
                                         ">",
                                         "é",
                                         "\n",
                                         "\x7f",
                                         "\xe2\x80\xa8",
                                         "日",
                                         "\xf0\x9f\x98\x80",
                                         " ",
                                         "{",
                                         ":"};
    std::string text;
    for (int size = random_.Pick(8); size > 0; --size) text += kParts[random_.Pick(16)];
    return text;
  }

  void Set(Message* message, const FieldDescriptor& field, int depth) {
    const uint64_t bits = random_.engine()() >> random_.Pick(64);
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return Put(message, field, Text(), &Reflection::SetString, &Reflection::AddString);
      case FieldDescriptor::CPPTYPE_BOOL:
        return Put(message, field, bits % 2 == 0, &Reflection::SetBool, &Reflection::AddBool);
      case FieldDescriptor::CPPTYPE_INT32:
        return Put(message, field, static_cast<int32_t>(bits), &Reflection::SetInt32,
                   &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_UINT32:
        return Put(message, field, static_cast<uint32_t>(bits), &Reflection::SetUInt32,
                   &Reflection::AddUInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return Put(message, field, static_cast<int64_t>(bits), &Reflection::SetInt64,
                   &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_UINT64:
        return Put(message, field, bits, &Reflection::SetUInt64, &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Put(message, field, static_cast<double>(bits) / 1024, &Reflection::SetDouble,
                   &Reflection::AddDouble);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Put(message, field, static_cast<float>(bits) / 1024, &Reflection::SetFloat,
                   &Reflection::AddFloat);
      case FieldDescriptor::CPPTYPE_ENUM:
        // Some are of a newer version.
        return Put(message, field, random_.Pick(field.enum_type()->value_count() + 2),
                   &Reflection::SetEnumValue, &Reflection::AddEnumValue);
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        const Reflection& reflection = *message->GetReflection();
        return Fill(field.is_repeated() ? reflection.AddMessage(message, &field)
                                        : reflection.MutableMessage(message, &field),
                    depth + 1);
      }
    }
  }

  SeededRandom random_;
};

// Of requests, answers and configuration: all kinds of fields that there are.
const Message* const kPrototypes[] = {
    &registry::v1::ServiceInstance::default_instance(),
    &registry::v1::RegisterRequest::default_instance(),
    &agent::v1::ListPendingResponse::default_instance(),
    &agent::v1::AgentConfig::default_instance(),
    &admin::v1::Overview::default_instance(),
    &admin::v1::InstanceDescription::default_instance(),
    &gateway::v1::Service::default_instance(),
    &gateway::v1::ServiceDelta::default_instance(),
};

// Maps may have got a key twice.
std::unique_ptr<Message> Settled(const Message& message) {
  std::unique_ptr<Message> settled(message.New());
  EXPECT_TRUE(settled->ParseFromString(message.SerializeAsString()));
  return settled;
}

TEST(MessageJsonTest, WhatIsWritten_ProtobufReads) {
  RandomMessages random;
  for (int i = 0; i < 2000; ++i) {
    const auto message = Settled(*random.Make(*kPrototypes[i % std::size(kPrototypes)]));
    const std::unique_ptr<Message> read(message->New());
    for (const JsonStyle style : {JsonStyle::kLine, JsonStyle::kPretty}) {
      const absl::StatusOr<std::string> json = MessageJson(*message, style);
      ASSERT_TRUE(json.ok()) << json.status();
      const auto status = google::protobuf::util::JsonStringToMessage(*json, read.get());
      ASSERT_TRUE(status.ok()) << status.message() << "\n" << *json;
      ASSERT_TRUE(MessageDifferencer::Equals(*message, *read)) << *json;
    }
  }
}

TEST(MessageJsonTest, WhatIsWritten_HasTheFieldsThatProtobufWrites) {
  RandomMessages random;
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  for (int i = 0; i < 1000; ++i) {
    const auto message = Settled(*random.Make(*kPrototypes[i % std::size(kPrototypes)]));
    std::string theirs;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(*message, &theirs, options).ok());
    google::protobuf::Value a, b;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(theirs, &a).ok());
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(Json(*message), &b).ok());
    ASSERT_TRUE(MessageDifferencer::Equals(a, b)) << theirs << "\n" << Json(*message);
  }
}

TEST(MessageJsonTest, WhatProtobufWrites_IsRead) {
  RandomMessages random;
  for (int i = 0; i < 2000; ++i) {
    const auto message = Settled(*random.Make(*kPrototypes[i % std::size(kPrototypes)]));
    google::protobuf::util::JsonPrintOptions options;
    options.always_print_primitive_fields = i % 3 == 0;
    options.preserve_proto_field_names = i % 5 == 0;
    options.add_whitespace = i % 7 == 0;
    options.always_print_enums_as_ints = i % 11 == 0;
    std::string json;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(*message, &json, options).ok());
    const std::unique_ptr<Message> read(message->New());
    const absl::Status status = ParseJson(json, read.get());
    ASSERT_TRUE(status.ok()) << status << "\n" << json;
    ASSERT_TRUE(MessageDifferencer::Equals(*message, *read)) << json;
  }
}

// --- What is refused, and how it is said.

std::string ErrorOf(const std::string& json) {
  registry::v1::Registration registration;
  const absl::Status status = ParseJson(json, &registration);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json << " " << status;
  return std::string(status.message());
}

TEST(MessageJsonTest, WrongTypes_AreRefusedByName) {
  EXPECT_EQ(ErrorOf(R"({"instance": {"port": "many"}})"),
            R"(instance.port: "many" is not a whole number from 0 to 4294967295)");
  EXPECT_EQ(ErrorOf(R"({"instance": {"port": -1}})"),
            "instance.port: -1 is not a whole number from 0 to 4294967295");
  EXPECT_EQ(ErrorOf(R"({"instance": {"port": 80.5}})"),
            "instance.port: 80.5 is not a whole number from 0 to 4294967295");
  EXPECT_EQ(ErrorOf(R"({"instance": {"port": 4294967296}})"),
            "instance.port: 4294967296 is not a whole number from 0 to 4294967295");
  EXPECT_EQ(ErrorOf(R"({"instance": {"port": true}})"),
            "instance.port: true is not a whole number from 0 to 4294967295");
  EXPECT_EQ(ErrorOf(R"({"instance": {"port": [80]}})"),
            "instance.port: is a list, not a whole number from 0 to 4294967295");
  EXPECT_EQ(ErrorOf(R"({"instance": {"address": 7}})"), "instance.address: 7 is not a text");
  EXPECT_EQ(ErrorOf(R"({"instance": {"persistent": "yes"}})"),
            R"(instance.persistent: "yes" is not one of true, false)");
  EXPECT_EQ(ErrorOf(R"({"instance": {"metadata": {"a": 1}}})"),
            R"(instance.metadata["a"]: 1 is not a text)");
  EXPECT_EQ(ErrorOf(R"({"instance": {"metadata": {"a": null}}})"),
            R"(instance.metadata["a"]: null is not a text)");
  EXPECT_EQ(ErrorOf(R"({"instance": {"metadata": [1]}})"),
            "instance.metadata: is a list, not an object");
  EXPECT_EQ(ErrorOf(R"({"instance": {"metadata": {"a": "1", "a": "2"}}})"),
            R"(instance.metadata["a"]: is there twice)");
  EXPECT_EQ(ErrorOf(R"({"instance": []})"), "instance: is a list, not an object");
  EXPECT_EQ(ErrorOf(R"({"instance": "x"})"), R"(instance: "x" is not an object)");
  EXPECT_THAT(ErrorOf(R"({"instance": {"status": "FINE"}})"),
              HasSubstr(R"(instance.status: "FINE" is not one of )"));
  EXPECT_THAT(ErrorOf(R"({"instance": {"Port": 80}})"),
              HasSubstr(R"(instance: has no field "Port"; allowed are key, )"));
  EXPECT_EQ(ErrorOf(R"({"instance": {"port": 80, "port": 81}})"), "instance.port: is there twice");
  EXPECT_EQ(ErrorOf("[]"), "body: is a list, not an object");
  EXPECT_EQ(ErrorOf("7"), "body: is no object");
}

TEST(MessageJsonTest, WhatIsNoJson_IsRefused) {
  EXPECT_EQ(ErrorOf(""), "body: is empty; JSON is expected");
  for (const char* const text :
       {" ", "{", "{}}", "{\"instance\"", "{'instance': {}}", "{instance: {}}",
        "{\"instance\": {},}", "nul", "{\"instance\": {\"port\": 08}}",
        "{\"instance\": {\"address\": \"\xff\"}}", "// x\n{}"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("body: is no valid JSON: ")) << text;
  }
  // One line, of a bounded size, whatever came.
  const std::string error = ErrorOf(absl::StrCat("{\"", std::string(100000, 'x'), "\n"));
  EXPECT_LT(error.size(), 300u);
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(MessageJsonTest, NumbersThatAreWhole_AreTaken) {
  registry::v1::ServiceInstance instance;
  for (const char* const port : {"8080", "8080.0", "8.08e3", "\"8080\""}) {
    ASSERT_TRUE(ParseJson(absl::StrCat("{\"port\": ", port, "}"), &instance).ok()) << port;
    EXPECT_EQ(instance.port(), 8080u) << port;
  }
}

TEST(MessageJsonTest, NullIsAsAbsent_AndWhatWasThereGoes) {
  registry::v1::ServiceInstance instance;
  instance.set_port(80);
  ASSERT_TRUE(ParseJson(R"({"address": null, "metadata": null, "key": null})", &instance).ok());
  EXPECT_EQ(instance.port(), 0u);
  EXPECT_FALSE(instance.has_key());
}

TEST(MessageJsonTest, DeepNesting_EndsAtTheFirstThingThatIsNoField) {
  EXPECT_THAT(ErrorOf(std::string(1000000, '[')), HasSubstr("body: is a list"));
  std::string json;
  for (int i = 0; i < 100000; ++i) json += "{\"instance\":";
  EXPECT_THAT(ErrorOf(json), HasSubstr(R"(has no field "instance")"));
}

TEST(MessageJsonTest, TimesThatNoCalendarHas_AreNotWritten) {
  agent::v1::ListPendingResponse response;
  agent::v1::PendingOperation& row = *response.add_operations();
  for (int i = 0; i < row.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *row.GetDescriptor()->field(i);
    if (field.message_type() != google::protobuf::Timestamp::descriptor()) continue;
    auto* const time = static_cast<google::protobuf::Timestamp*>(
        row.GetReflection()->MutableMessage(&row, &field));
    time->set_seconds(int64_t{1} << 60);
    const absl::Status status = MessageJson(response).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("ListPendingResponse has no JSON form"));
    return;
  }
  FAIL() << "no field is a time";
}

}  // namespace
}  // namespace failback
