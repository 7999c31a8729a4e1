// Objects that clients send: names in many ways, types that are wrong, fields that nobody knows.

#include "gateway/markup/fields.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/util/seeded_random.h"

namespace failback::markup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class FieldsTest : public ::testing::Test {
 protected:
  Fields Read(const std::string& json, const std::string& path = "") {
    auto value = ParseJson(json);
    EXPECT_TRUE(value.ok()) << value.status();
    value_ = *value;
    auto fields = Fields::Of(path, value_);
    EXPECT_TRUE(fields.ok()) << fields.status();
    return *fields;
  }
  google::protobuf::Value value_;
};

TEST_F(FieldsTest, NamesAreTheSame_WithAnyCaseAndUnderscores) {
  for (const char* json :
       {R"({"ServiceID":"a"})", R"({"serviceid":"a"})", R"({"service_id":"a"})"}) {
    EXPECT_EQ(Read(json).Text("ServiceID"), "a") << json;
  }
  auto value = ParseJson(R"({"ServiceID":"a","service_id":"b"})");
  EXPECT_THAT(Fields::Of("", *value).status().message(), HasSubstr("twice"));
}

TEST_F(FieldsTest, ValuesAreRead_AndAbsentOnesAreEmpty) {
  Fields fields =
      Read(R"({"t":"x","n":7,"s":"8","b":true,"l":["a","b"],"m":{"k":"v","n":1},"z":null})");
  EXPECT_EQ(fields.Text("T"), "x");
  EXPECT_EQ(fields.Integer("N", 0, 9), 7);
  EXPECT_EQ(fields.Integer("S", 0, 9), 8) << "numbers may come as text";
  EXPECT_TRUE(fields.Flag("B"));
  EXPECT_THAT(fields.Texts("L"), ElementsAre("a", "b"));
  EXPECT_THAT(fields.TextMap("M"), ElementsAre(Pair("k", "v"), Pair("n", "1")));
  EXPECT_EQ(fields.Text("Z"), "");
  EXPECT_EQ(fields.Integer("Absent", 0, 9), std::nullopt);
  EXPECT_TRUE(fields.Finish().ok()) << fields.Finish();
}

TEST_F(FieldsTest, AnErrorNamesTheFieldAndWhatIsExpected) {
  const auto error = [&](const std::string& json, auto read) {
    Fields fields = Read(json, "Checks[0]");
    read(&fields);
    return std::string(fields.Finish().message());
  };
  EXPECT_EQ(error(R"({"a":1})", [](Fields* f) { f->Text("A"); }),
            "Checks[0].A: is a number; a text is expected");
  EXPECT_EQ(error(R"({"a":"x"})", [](Fields* f) { f->Integer("A", 0, 9); }),
            "Checks[0].A: \"x\" is no whole number");
  EXPECT_EQ(error(R"({"a":10})", [](Fields* f) { f->Integer("A", 0, 9); }),
            "Checks[0].A: 10 is not in 0..9");
  EXPECT_EQ(error(R"({"a":1.5})", [](Fields* f) { f->Integer("A", 0, 9); }),
            "Checks[0].A: \"1.5\" is no whole number");
  EXPECT_EQ(error(R"({"a":["x",{}]})", [](Fields* f) { f->Texts("A"); }),
            "Checks[0].A[1]: is an object; a text is expected");
  EXPECT_EQ(error(R"({"a":{"x":[]}})", [](Fields* f) { f->TextMap("A"); }),
            "Checks[0].A[\"x\"]: is a list; a text is expected");
}

TEST_F(FieldsTest, AFieldThatNobodyAskedFor_IsRefused_UnlessItSaysNothing) {
  Fields said = Read(R"({"Name":"a","Connect":{"Native":true}})");
  said.Text("Name");
  said.Text("ID");
  EXPECT_EQ(said.Finish().message(), "Connect: is not supported; allowed: Name, ID");
  Fields unsaid = Read(R"({"Connect":{"Native":false,"Proxy":null},"Tags":[],"A":"","B":0})");
  EXPECT_TRUE(unsaid.Finish().ok());
}

TEST_F(FieldsTest, WhatIsNoJson_IsRefused) {
  for (const std::string& text : {std::string(""), std::string("{"),
                                  std::string("{\"a\":\"\xff\"}"), std::string(300, '[')}) {
    EXPECT_FALSE(ParseJson(text).ok()) << text;
  }
  auto list = ParseJson("[1]");
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(Fields::Of("", *list).status().message(), "body: is a list; an object is expected");
}

TEST_F(FieldsTest, WhatIsNoJson_SaysWhere) {
  const auto trailing = ParseJson(R"({"Port": 1,})");
  EXPECT_THAT(std::string(trailing.status().message()),
              HasSubstr("body: is no valid JSON: parse error at line 1, column 12"));
  // Names and texts without quotes of JSON, comments, and more than one value are no JSON.
  for (const char* const text : {"{Port: 1}", "{'Port': 1}", "{} {}", "// x\n{}", "{\"a\": .5}"}) {
    EXPECT_FALSE(ParseJson(text).ok()) << text;
  }
  EXPECT_EQ(ParseJson("").status().message(), "body: is empty; JSON is expected");
  EXPECT_EQ(ParseJson(R"({"a": 1, "a": 2})").status().message(), "\"a\": is there twice");
}

TEST_F(FieldsTest, Nesting_IsBounded) {
  const auto nested = [](int depth) {
    return absl::StrCat(std::string(depth, '['), std::string(depth, ']'));
  };
  EXPECT_TRUE(ParseJson(nested(64)).ok());
  EXPECT_EQ(ParseJson(nested(65)).status().message(), "body: is nested more than 64 deep");
  EXPECT_EQ(ParseJson(std::string(1000000, '[')).status().message(),
            "body: is nested more than 64 deep");
}

class RandomValues {
 public:
  google::protobuf::Value Make(int depth) {
    google::protobuf::Value value;
    switch (random_.Pick(depth > 4 ? 4 : 6)) {
      case 0:
        value.set_null_value(google::protobuf::NULL_VALUE);
        break;
      case 1:
        value.set_bool_value(random_.Pick(2) == 0);
        break;
      case 2:
        value.set_number_value(static_cast<double>(random_.engine()() >> random_.Pick(64)) / 16 -
                               random_.Pick(1000));
        break;
      case 3:
        value.set_string_value(Text());
        break;
      case 4:
        value.mutable_list_value();
        for (int size = random_.Pick(4); size > 0; --size) {
          *value.mutable_list_value()->add_values() = Make(depth + 1);
        }
        break;
      default:
        value.mutable_struct_value();
        for (int size = random_.Pick(4); size > 0; --size) {
          (*value.mutable_struct_value()->mutable_fields())[Text()] = Make(depth + 1);
        }
    }
    return value;
  }

 private:
  std::string Text() {
    static const char* const kParts[] = {"a", "\"", "\\", "é", "\n", "\xf0\x9f\x98\x80", "<", "}"};
    std::string text;
    for (int size = random_.Pick(6); size > 0; --size) text += kParts[random_.Pick(8)];
    return text;
  }

  SeededRandom random_;
};

TEST_F(FieldsTest, WhatProtobufWrites_IsReadTheSame) {
  RandomValues random;
  for (int i = 0; i < 3000; ++i) {
    const google::protobuf::Value value = random.Make(0);
    std::string json;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(value, &json).ok());
    const auto read = ParseJson(json);
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << json;
    ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(value, *read)) << json;
  }
}

}  // namespace
}  // namespace failback::markup
