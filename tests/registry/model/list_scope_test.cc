#include "registry/model/list_scope.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ListRequest Parse(const std::string& text) {
  ListRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

// As patterns of `namespace/service`.
std::vector<std::string> Ranges(const std::string& text,
                                std::optional<std::string> owner = std::nullopt) {
  const ListRequest request = Parse(text);
  std::vector<std::string> texts;
  for (const ServiceRange& range : ListScopes(request, std::move(owner)).ranges()) {
    std::string readable = range.text;
    for (char& c : readable) c = c == '\0' ? '/' : c;
    texts.push_back(readable + (range.prefix ? "*" : ""));
  }
  return texts;
}

TEST(ListScopeTest, WithoutScopesTheSelectorIsTheRange) {
  EXPECT_THAT(Ranges(""), ElementsAre("default/*"));
  EXPECT_THAT(Ranges("selector {namespace: 'prod'}"), ElementsAre("prod/*"));
  EXPECT_THAT(Ranges("selector {namespace: 'prod' service: 'a'}"), ElementsAre("prod/a"));
  EXPECT_THAT(Ranges("incarnation: 'i'"), ElementsAre("*"));
}

TEST(ListScopeTest, GrantsAreSortedAndDisjoint) {
  const std::string scope =
      "scopes {grants {namespaces: ['default', 'x'] services: ['pay', 'or*', 'orders', 'b']}"
      "        grants {namespaces: 'de*' services: ['pay', 'p']}"
      "        grants {namespaces: 'prod' services: '*'}}";
  EXPECT_THAT(Ranges(scope), ElementsAre("default/b", "default/or*", "default/p", "default/pay"));
  EXPECT_THAT(Ranges("selector {namespace: 'prod'}" + scope), ElementsAre("prod/*"));
  EXPECT_THAT(Ranges("selector {service: 'orders'}" + scope), ElementsAre("default/orders"));
  EXPECT_THAT(Ranges("selector {service: 'secret'}" + scope), IsEmpty());
  EXPECT_THAT(Ranges("scopes {}"), IsEmpty());
}

TEST(ListScopeTest, EveryScopeHasToShowAService) {
  EXPECT_THAT(Ranges("scopes {grants {namespaces: '*' services: ['a*', 'b', 'c*']}}"
                     "scopes {grants {namespaces: '*' services: ['a-1', 'a-2*', 'b*', 'd']}}"),
              ElementsAre("default/a-1", "default/a-2*", "default/b"));
}

TEST(ListScopeTest, OfAllNamespacesSomeRangesHoldMore) {
  const std::string exact =
      "incarnation: 'i' scopes {grants {namespaces: 'n' services: 'a'}"
      "                         grants {namespaces: 'p*' services: '*'}}";
  EXPECT_THAT(Ranges(exact), ElementsAre("n/a", "p*"));
  ListRequest request = Parse(exact);
  EXPECT_TRUE(ListScopes(request, std::nullopt).exact());
  const std::string mixed = "incarnation: 'i' scopes {grants {namespaces: 'n*' services: 'a'}}";
  EXPECT_THAT(Ranges(mixed), ElementsAre("n*"));
  request = Parse(mixed);
  const ListScopes scopes(request, std::nullopt);
  EXPECT_FALSE(scopes.exact());
  EXPECT_TRUE(scopes.Shows("n-1", "a"));
  EXPECT_FALSE(scopes.Shows("n-1", "b"));
}

TEST(ListScopeTest, OnesOwnIncarnationIsShownWhole) {
  const std::string scope =
      "scopes {grants {namespaces: '*' services: 'a'} owner: 'me'"
      "        own_grants {namespaces: 'default' services: 'b'}}";
  const std::string request = "selector {} incarnation: 'i' " + scope;
  EXPECT_THAT(Ranges(request, "me"), ElementsAre("default/*"));
  EXPECT_THAT(
      Ranges(request + "scopes {grants {namespaces: '*' services: 'c'} owner: 'agent'}", "me"),
      ElementsAre("default/c"))
      << "another scope narrows it all the same";
  EXPECT_THAT(Ranges(request, ""), ElementsAre("default/a", "default/b"));
  EXPECT_THAT(Ranges(request, "other"), ElementsAre("default/a"));
  EXPECT_THAT(Ranges(request), ElementsAre("default/a"));
}

TEST(ListScopeTest, CoverageSaysWhetherScopesHideAnything) {
  const auto coverage = [](const std::string& text, std::optional<std::string> owner) {
    const ListRequest request = Parse("incarnation: 'i' " + text);
    return ListScopes(request, std::move(owner)).coverage();
  };
  const std::string mine = "scopes {owner: 'me'}";
  EXPECT_EQ(coverage("", "me"), registry::v1::LIST_COVERAGE_UNSPECIFIED);
  EXPECT_EQ(coverage(mine, "me"), registry::v1::LIST_COVERAGE_WHOLE);
  EXPECT_EQ(coverage(mine + "scopes {owner: 'agent'}", "me"), registry::v1::LIST_COVERAGE_PART);
  for (const auto& owner : {std::optional<std::string>("other"), std::optional<std::string>(""),
                            std::optional<std::string>()}) {
    EXPECT_EQ(coverage(mine, owner), registry::v1::LIST_COVERAGE_PART) << owner.value_or("none");
  }
  // A scope without an owner owns nothing.
  EXPECT_EQ(coverage("scopes {}", ""), registry::v1::LIST_COVERAGE_PART);
}

TEST(ListScopeTest, ARangeHoldsTheKeysOfItsInstances) {
  const auto holds = [](const ServiceRange& range, const std::string& key) {
    return range.begin() <= key && key < range.end();
  };
  const ServiceRange service = ServiceRange::Service("default", "a");
  const std::string key("default\0a", 9);
  EXPECT_TRUE(holds(service, key));
  EXPECT_TRUE(holds(service, key + '\0' + "id"));
  EXPECT_FALSE(holds(service, key + "-"));
  EXPECT_FALSE(holds(service, key + "-" + '\0' + "id"));
  EXPECT_TRUE(holds(ServiceRange::Namespace("default"), key));
  EXPECT_FALSE(holds(ServiceRange::Namespace("default"), "defaults" + key.substr(7)));
  EXPECT_TRUE(holds(ServiceRange::All(), "~"));
  const ServiceRange prefix = {std::string("default\0a-", 10), true};
  EXPECT_TRUE(holds(prefix, key + "-z"));
  EXPECT_FALSE(holds(prefix, key + "."));
}

}  // namespace
}  // namespace failback
