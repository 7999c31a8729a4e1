#include "registry/failback/merged_pages.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/validation.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

// A registry with these instances, which answers pages of at most `page` records.
ListResponse Page(const std::map<std::string, uint32_t>& held, const std::string& token,
                  size_t page, bool stale = false) {
  ListResponse response;
  response.set_stale(stale);
  for (auto it = token.empty() ? held.begin() : held.upper_bound(token); it != held.end(); ++it) {
    if (response.records_size() == static_cast<int>(page)) {
      response.set_next_page_token(
          response.records(response.records_size() - 1).instance().key().instance_id());
      break;
    }
    *response.add_records()->mutable_instance() = MakeInstance(it->first, it->second);
  }
  return response;
}

TEST(MergedPagesTest, OfTwoStatesTheOneThatIsLessFar) {
  using namespace registry::v1;  // NOLINT
  const IntentState order[] = {INTENT_STATE_UNSPECIFIED, INTENT_STATE_PARKED,
                               INTENT_STATE_SUPERSEDED,  INTENT_STATE_ACCEPTED,
                               INTENT_STATE_LAPSED,      INTENT_STATE_ACKNOWLEDGED};
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 6; ++j) EXPECT_EQ(LesserState(order[i], order[j]), order[std::min(i, j)]);
  }
}

TEST(MergedPagesTest, TokensAreCheckedAndReadBack) {
  MergedPlace place;
  place.after = std::string("a\0b", 3);
  place.tokens = {"x.y", std::nullopt, ""};
  const auto parsed = MergedPlace::Parse(place.Format(), 3);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->after, place.after);
  EXPECT_EQ(parsed->tokens, place.tokens);
  for (const std::string& bad : {place.Format() + ".", std::string("$.!.!.!"), std::string("x")}) {
    EXPECT_EQ(MergedPlace::Parse(bad, 3).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(MergedPlace::Parse(place.Format(), 2).status().message(),
            "page_token: is not a token of an earlier page");
  place.tokens = {std::nullopt, std::nullopt};
  EXPECT_EQ(place.Format(), "");
}

TEST(MergedPagesTest, AFreshRecordCountsMoreThanAStaleOneAndTheFirstMore) {
  const MergedPlace place = *MergedPlace::Parse("", 3);
  const ListResponse merged = MergePages(0, place,
                                         {Page({{"a", 1}, {"b", 1}}, "", 9, /*stale=*/true),
                                          Page({{"a", 2}}, "", 9), Page({{"a", 3}}, "", 9)});
  ASSERT_EQ(merged.records_size(), 2);
  EXPECT_EQ(merged.records(0).instance().port(), 2);
  EXPECT_EQ(merged.records(1).instance().port(), 1);
  EXPECT_TRUE(merged.stale());
  EXPECT_EQ(merged.next_page_token(), "");
}

TEST(MergedPagesTest, AnIntentIsAcknowledgedWhenAllHaveIt) {
  ListResponse pages[2] = {Page({{"a", 1}}, "", 9), Page({{"a", 1}}, "", 9)};
  pages[0].mutable_records(0)->set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  pages[1].mutable_records(0)->set_state(registry::v1::INTENT_STATE_ACCEPTED);
  const ListResponse merged = MergePages(0, *MergedPlace::Parse("", 2), {pages[0], pages[1]});
  EXPECT_EQ(merged.records(0).state(), registry::v1::INTENT_STATE_ACCEPTED);
}

TEST(MergedPagesTest, AListingIsWholeWhereEachOfThoseThatAreStillListedIs) {
  const MergedPlace begin = *MergedPlace::Parse("", 2);
  ListResponse pages[2] = {Page({{"a", 1}}, "", 9), Page({{"b", 1}}, "", 9)};
  const auto merged = [&](const MergedPlace& place) {
    return MergePages(0, place, {pages[0], pages[1]}).coverage();
  };
  EXPECT_EQ(merged(begin), registry::v1::LIST_COVERAGE_UNSPECIFIED);
  pages[0].set_coverage(registry::v1::LIST_COVERAGE_WHOLE);
  EXPECT_EQ(merged(begin), registry::v1::LIST_COVERAGE_PART);
  MergedPlace second_ended = begin;
  second_ended.tokens[1] = std::nullopt;
  EXPECT_EQ(merged(second_ended), registry::v1::LIST_COVERAGE_WHOLE);
  pages[1].set_coverage(registry::v1::LIST_COVERAGE_WHOLE);
  EXPECT_EQ(merged(begin), registry::v1::LIST_COVERAGE_WHOLE);
}

TEST(MergedPagesTest, PageOfSeveralRegistries_HasAtMostTheLargestPageSize) {
  std::map<std::string, uint32_t> held[2];
  for (int i = 0; i < kMaxPageSize; ++i) held[i % 2][absl::StrCat("i", 10000 + i)] = 1;
  held[0]["last"] = 1;
  for (const int page_size : {0, kMaxPageSize + 1}) {
    const ListResponse merged =
        MergePages(page_size, *MergedPlace::Parse("", 2),
                   {Page(held[0], "", kMaxPageSize), Page(held[1], "", kMaxPageSize)});
    EXPECT_EQ(merged.records_size(), kMaxPageSize);
    EXPECT_NE(merged.next_page_token(), "");
  }
}

TEST(MergedPagesTest, PageIsFull_AtItsRowsOrItsBytes_ButNeverEmpty) {
  EXPECT_FALSE(PageIsFull(0, 1, kPageBytes + 1));
  EXPECT_FALSE(PageIsFull(1, 2, kPageBytes));
  EXPECT_TRUE(PageIsFull(2, 2, 1));
  EXPECT_TRUE(PageIsFull(1, 2, kPageBytes + 1));
  EXPECT_FALSE(PageIsFull(100000, 0, kPageBytes));
  EXPECT_TRUE(PageIsFull(1, 0, kPageBytes + 1));
}

TEST(MergedPagesTest, RandomListingsAreCompleteSortedAndWithoutRepetition) {
  std::mt19937 random(1);
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::map<std::string, uint32_t>> held(1 + pick(3));
    std::map<std::string, uint32_t> expected;
    for (auto& registry : held) {
      for (int n = pick(12); n > 0; --n) {
        const std::string id = absl::StrCat("i", 10 + pick(20));
        registry[id] = 1;
        expected[id] = 1;
      }
    }
    const int page_size = pick(5);
    const size_t theirs = 1 + pick(5);
    std::string token;
    std::vector<std::string> listed;
    int calls = 0;
    do {
      const auto place = MergedPlace::Parse(token, held.size());
      ASSERT_TRUE(place.ok()) << place.status();
      std::vector<ListResponse> pages;
      for (size_t i = 0; i < held.size(); ++i) {
        const auto& theirs_next = place->tokens[i];
        pages.push_back(theirs_next.has_value() ? Page(held[i], *theirs_next, theirs)
                                                : ListResponse());
        // A filter may leave nothing of a page.
        if (!pages.back().next_page_token().empty() && pick(8) == 0) {
          for (const auto& record : pages.back().records()) {
            held[i].erase(record.instance().key().instance_id());
          }
          pages.back().clear_records();
        }
      }
      const ListResponse merged = MergePages(page_size, *place, pages);
      EXPECT_TRUE(page_size == 0 || merged.records_size() <= page_size);
      for (const auto& record : merged.records()) {
        listed.push_back(record.instance().key().instance_id());
      }
      token = merged.next_page_token();
      ASSERT_LT(++calls, 200) << "no progress";
    } while (!token.empty());
    EXPECT_TRUE(std::is_sorted(listed.begin(), listed.end()));
    EXPECT_EQ(std::adjacent_find(listed.begin(), listed.end()), listed.end()) << "listed twice";
    std::map<std::string, uint32_t> left;
    for (const auto& registry : held) left.insert(registry.begin(), registry.end());
    for (const auto& [id, port] : left) {
      EXPECT_EQ(std::count(listed.begin(), listed.end(), id), 1) << id << " was left out";
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace failback
