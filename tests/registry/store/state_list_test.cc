// State's listings: sorted, paged, chosen.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/store/state.h"
#include "tests/registry/store/state_fixture.h"

namespace failback {
namespace {

using ::testing::ElementsAre;

TEST_F(StateTest, ListIsSortedAndPaged) {
  const std::string a = Open("a");
  for (const char* id : {"10", "1", "2", "1-x", "9"}) Apply(a, Put(id, std::string(id) + ":"));
  ListQuery query;
  query.max_items = 2;
  std::vector<std::string> seen;
  for (int page_number = 0; page_number < 10; ++page_number) {
    const ListPage page = state_.List(query);
    for (const auto& item : page.items) seen.emplace_back(item.instance.view());
    if (page.next_after.empty()) break;
    query.after = page.next_after;
  }
  EXPECT_THAT(seen, ElementsAre("1:", "1-x:", "10:", "2:", "9:"));
}

TEST_F(StateTest, ListChoosesByServiceNamespaceAndIncarnation) {
  const std::string a = Open("a");
  const std::string b = Open("b");
  const auto put = [&](const std::string& session, const std::string& name_space,
                       const std::string& service, const std::string& payload) {
    Intent intent = Put("1", payload);
    intent.key = name_space + std::string(1, '\0') + service + std::string(1, '\0') + payload;
    EXPECT_TRUE(Apply(session, std::move(intent)).status.ok());
  };
  put(a, "default", "orders", "o1");
  put(b, "default", "orders", "o2");
  put(a, "default", "orders-2", "p1");
  put(a, "defaults", "orders", "q1");
  put(b, "prod", "orders", "r1");
  const auto list = [&](ListQuery query) {
    std::string seen;
    for (int pages = 0; pages < 10; ++pages) {
      const ListPage page = state_.List(query);
      for (const auto& item : page.items) seen += std::string(item.instance.view()) + " ";
      if (page.next_after.empty()) break;
      query.after = page.next_after;
    }
    return seen;
  };
  for (const size_t max_items : {1, 2, 1000}) {
    ListQuery query;
    query.max_items = max_items;
    EXPECT_EQ(list(query), "o1 o2 p1 q1 r1 ");
    query.ranges = {ServiceRange::Namespace("default")};
    EXPECT_EQ(list(query), "o1 o2 p1 ");
    query.incarnation = "a";
    EXPECT_EQ(list(query), "o1 p1 ");
    query.ranges = {ServiceRange::All()};
    EXPECT_EQ(list(query), "o1 p1 q1 ");
    query.incarnation = "";
    query.ranges = {ServiceRange::Service("default", "orders")};
    EXPECT_EQ(list(query), "o1 o2 ");
    query.incarnation = "b";
    EXPECT_EQ(list(query), "o2 ");
    query.ranges = {ServiceRange::Service("default", "none")};
    EXPECT_EQ(list(query), "");
    query.incarnation = "nobody";
    EXPECT_EQ(list(query), "");
  }
}

// What an incarnation has is sorted in parts, while others come and go.
TEST_F(StateTest, ListingsOfAnIncarnationArePreparedInParts) {
  const std::string a = Open("a");
  for (int i = 0; i < 100; ++i) {
    Apply(a, Put(std::to_string(1000 + i), std::to_string(1000 + i) + ":"));
  }
  int parts = 1;
  for (int i = 0; !state_.PrepareList("a", 10); ++i, ++parts) {
    ASSERT_LT(parts, 100);
    Apply(a, Remove(std::to_string(1089 - 11 * i)));
    Apply(a, Put(std::to_string(2000 + i), std::to_string(2000 + i) + ":"));
    EXPECT_EQ(state_.CheckInvariants(), absl::OkStatus());
  }
  EXPECT_GT(parts, 8);
  EXPECT_EQ(state_.CheckInvariants(), absl::OkStatus());
  ListQuery query;
  query.incarnation = "a";
  EXPECT_EQ(state_.List(query).items.size(), 100u);
  EXPECT_THAT(state_.ServicesOwned("a", "", 10), ElementsAre(state_.ListedServices("", 10)[0]));
}

// Services outside of the ranges cost nothing: the work of a page is bounded by what it has and by
// what is asked for, however many there are.
TEST_F(StateTest, AListingLooksAtItsRangesOnly) {
  const std::string a = Open("a");
  const auto put = [&](const std::string& service, const std::string& id) {
    Intent intent = Put(id, id);
    intent.key = std::string("default") + '\0' + service + '\0' + id;
    EXPECT_TRUE(Apply(a, std::move(intent)).status.ok());
  };
  ListQuery query;
  query.ranges.clear();
  for (int i = 0; i < 20; ++i) {
    const std::string service = "s-" + std::to_string(100 + i);
    query.ranges.push_back(ServiceRange::Service("default", service));
    for (const char* id : {"1", "2", "3"}) put(service, id);
  }
  const auto looked = [&](size_t max_items, const std::string& incarnation) {
    query.max_items = max_items;
    query.incarnation = incarnation;
    query.after.clear();
    size_t items = 0;
    size_t looked = 0;
    for (int pages = 0; pages < 100; ++pages) {
      const ListPage page = state_.List(query);
      EXPECT_LE(page.looked, 2 * query.ranges.size() + page.items.size() + 1);
      items += page.items.size();
      looked += page.looked;
      if (page.next_after.empty()) break;
      query.after = page.next_after;
    }
    EXPECT_EQ(items, 60u);
    return looked;
  };
  std::vector<size_t> before;
  for (const size_t max_items : {1, 7, 1000}) {
    for (const char* incarnation : {"", "a"}) before.push_back(looked(max_items, incarnation));
  }
  // Around each of them, and more than all of them.
  for (int i = 0; i < 500; ++i) put(absl::StrCat("s-", 100 + i % 20, "-", i), "1");
  std::vector<size_t> after;
  for (const size_t max_items : {1, 7, 1000}) {
    for (const char* incarnation : {"", "a"}) after.push_back(looked(max_items, incarnation));
  }
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace failback
