#include "daemon/yaml_document.h"

#include <string>

#include "daemon/config_file.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

YamlDocument Parse(const std::string& text) {
  auto document = YamlDocument::Parse("f", text);
  EXPECT_TRUE(document.ok()) << document.status();
  return *std::move(document);
}

std::string ParseError(const std::string& text) {
  return std::string(YamlDocument::Parse("f", text).status().message());
}

TEST(YamlDocumentTest, KindsOfNodesAreThoseOfTheText) {
  const YamlDocument document = Parse("[~, null, '', \"null\", text, [a], {b: c}, ]");
  const YamlNode root = document.root();
  ASSERT_TRUE(root.is_list());
  ASSERT_EQ(root.size(), 7u);
  EXPECT_TRUE(root.item(0).is_nothing());
  EXPECT_TRUE(root.item(1).is_nothing());
  EXPECT_TRUE(root.item(2).is_text());  // empty, and meant so
  EXPECT_EQ(root.item(2).text(), "");
  EXPECT_EQ(root.item(3).text(), "null");
  EXPECT_EQ(root.item(4).text(), "text");
  EXPECT_TRUE(root.item(5).is_list());
  ASSERT_TRUE(root.item(6).is_map());
  EXPECT_EQ(root.item(6).key(0).text(), "b");
  EXPECT_EQ(root.item(6).value(0).text(), "c");
}

TEST(YamlDocumentTest, AnAliasIsTheNodeThatItNames) {
  const YamlDocument document = Parse("a: &x {b: 1}\nc: *x\n");
  const YamlNode root = document.root();
  EXPECT_TRUE(root.value(0) == root.value(1));
  EXPECT_EQ(root.value(1).line(), 1);
  EXPECT_EQ(ParseError("a: *x"), "f:1: not YAML: found undefined alias");
}

TEST(YamlDocumentTest, AnEmptyTextIsNothing) {
  for (const char* text : {"", "\n\n", "# a comment\n", "---\n", "~"}) {
    const YamlDocument document = Parse(text);
    EXPECT_TRUE(document.root().is_nothing()) << text;
    EXPECT_EQ(document.root().line() > 0, true);
  }
}

TEST(YamlDocumentTest, ErrorsNameTheLineInOneLine) {
  EXPECT_EQ(ParseError("a: b\n---\nc: d\n"), "f:3: a second document; one is allowed");
  EXPECT_EQ(ParseError("a: b\nc: [d\n"), "f:3: not YAML: did not find expected ',' or ']'");
  EXPECT_EQ(ParseError("- ["), "f:1: not YAML: did not find expected node content");
  EXPECT_EQ(ParseError("a: b\nc: \xff\n"), "f:2: not YAML: invalid leading UTF-8 octet");
  EXPECT_EQ(ParseError(std::string("a: b\n\0", 6)),
            "f:2: not YAML: control characters are not allowed");
  // Before it costs time: libyaml's grows with the square of the depth.
  EXPECT_EQ(ParseError(std::string(1000000, '[')), "f:1: lists and maps are more than 100 deep");
  EXPECT_TRUE(YamlDocument::Parse("f", std::string(100, '[') + std::string(100, ']')).ok());
}

TEST(YamlDocumentTest, APathLeadsToTheNearestThingThatIsThere) {
  const std::string text =
      "log: {level: info}\n"
      "services:\n"
      "- name: a\n"
      "- name: b\n"
      "  metadata:\n"
      "    x.y[0]: z\n";
  const auto place = [&](const std::string& path) { return PlaceInYaml("f", text, path); };
  EXPECT_EQ(place("log.level"), "f:1");
  EXPECT_EQ(place("services"), "f:2");
  EXPECT_EQ(place("services[1]"), "f:4");
  EXPECT_EQ(place("services[1].metadata[\"x.y[0]\"]"), "f:6");
  // What is missing: the nearest thing around it.
  EXPECT_EQ(place("services[1].port"), "f:4");
  EXPECT_EQ(place("services[7].port"), "f:2");
  EXPECT_EQ(place("services[1].metadata[\"no\"]"), "f:5");
  EXPECT_EQ(place("services[1].name[0]"), "f:4");
  EXPECT_EQ(place("registry"), "");
  EXPECT_EQ(place(""), "");
  EXPECT_EQ(place("["), "");
  EXPECT_EQ(place("services["), "f:2");
}

}  // namespace
}  // namespace failback
