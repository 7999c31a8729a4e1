// Objects that clients send: names in many ways, types that are wrong, fields that nobody knows.

#include "gateway/markup/fields.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace failback::markup
