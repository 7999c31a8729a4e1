// XML in and out: the shape of the values, what is refused, and that what is written is read again.

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/markup/json_writer.h"
#include "gateway/markup/xml_reader.h"
#include "gateway/markup/xml_writer.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "gtest/gtest.h"

namespace failback::markup {
namespace {

using ::testing::HasSubstr;

// As JSON, but with the names in order.
void Append(const google::protobuf::Value& value, JsonWriter* json) {
  if (value.has_list_value()) {
    json->BeginArray();
    for (const auto& item : value.list_value().values()) Append(item, json);
    json->EndArray();
  } else if (value.has_struct_value()) {
    json->BeginObject();
    const auto& fields = value.struct_value().fields();
    for (const auto& [name, field] :
         std::map<std::string, google::protobuf::Value>(fields.begin(), fields.end())) {
      Append(field, &json->Key(name));
    }
    json->EndObject();
  } else {
    json->String(value.string_value());
  }
}

std::string Json(const std::string& xml) {
  const auto value = ParseXml(xml);
  if (!value.ok()) return std::string(value.status().message());
  JsonWriter json;
  Append(*value, &json);
  return std::move(json).Take();
}

TEST(XmlReaderTest, ElementsBecomeTheValuesThatJsonWouldHave) {
  EXPECT_EQ(Json("<a/>"), R"({"a":""})");
  EXPECT_EQ(Json("<a>x &amp; <![CDATA[<y>]]></a>"), R"({"a":"x & \u003cy>"})");
  EXPECT_EQ(Json("<?xml version=\"1.0\"?><!-- c --><a> <b>1</b> <b>2</b> </a>"),
            R"({"a":{"b":["1","2"]}})");
  EXPECT_EQ(Json("<port enabled=\"true\">8080</port>"),
            R"({"port":{"$":"8080","@enabled":"true"}})");
}

TEST(XmlReaderTest, WhatCouldGrow_IsRefused) {
  EXPECT_THAT(Json("<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>"), HasSubstr("document type"));
  EXPECT_THAT(Json("<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>"), HasSubstr("document type"));
  EXPECT_THAT(Json("<a>&x;</a>"), HasSubstr("undefined entity"));
  std::string deep, wide = "<a>";
  for (int i = 0; i <= kMaxXmlDepth; ++i) absl::StrAppend(&deep, "<a>");
  EXPECT_THAT(Json(deep), HasSubstr("deeper than 16"));
  for (int i = 0; i <= kMaxXmlElements; ++i) absl::StrAppend(&wide, "<b/>");
  EXPECT_THAT(Json(wide), HasSubstr("more than 4096"));
}

TEST(XmlReaderTest, WhatIsNoXml_IsRefusedWithItsLine) {
  EXPECT_THAT(Json("<a>\n<b></a>"), HasSubstr("line 2"));
  EXPECT_THAT(Json(""), HasSubstr("no element"));
  EXPECT_THAT(Json("<a>\xff</a>"), HasSubstr("line 1"));
}

TEST(XmlWriterTest, WhatIsWritten_IsReadAgain) {
  const std::string text = "a<b>&\"'\tü\n\x01z\xEF\xBF\xBF";
  XmlWriter xml;
  xml.Open("x", {{"y", text}}).Text(text).Close("x");
  const auto value = ParseXml(std::move(xml).Take());
  ASSERT_TRUE(value.ok()) << value.status();
  const auto& fields = value->struct_value().fields().at("x").struct_value().fields();
  EXPECT_EQ(fields.at("$").string_value(), "a<b>&\"'\tü\nz");
  EXPECT_EQ(fields.at("@y").string_value(), "a<b>&\"'\tü\nz");
}

TEST(XmlWriterTest, NotEveryTextIsAName) {
  EXPECT_TRUE(IsXmlName("eu-1.zone_a"));
  for (const char* name : {"", "1a", "-a", "a b", "a:b", "ü"})
    EXPECT_FALSE(IsXmlName(name)) << name;
}

TEST(JsonWriterTest, CommasAndEscapesAreInPlace) {
  JsonWriter json;
  json.BeginObject().Key("a").BeginArray().Number(1).String("x\"\\\n</").EndArray();
  json.Key("b").BeginObject().EndObject().Key("c").Bool(true).Key("d").Null().EndObject();
  EXPECT_EQ(std::move(json).Take(),
            "{\"a\":[1,\"x\\\"\\\\\\u000a\\u003c/\"],\"b\":{},\"c\":true,\"d\":null}");
}

}  // namespace
}  // namespace failback::markup
