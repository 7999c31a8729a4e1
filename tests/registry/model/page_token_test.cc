#include "registry/model/page_token.h"

#include <string>

#include "gtest/gtest.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

TEST(PageToken, IsThePlaceThatItWasMadeOf) {
  for (const std::string& place : {std::string("a"), std::string("a\0b\nc", 5),
                                   std::string(1, '\0'), std::string(5000, '\xff')}) {
    const auto parsed = ParsePageToken("sessions", PageToken("sessions", place));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, place);
  }
  EXPECT_EQ(PageToken("sessions", ""), "") << "no page follows";
  EXPECT_EQ(ParsePageToken("sessions", "").value(), "") << "the first page";
}

TEST(PageToken, WhatIsNoPlaceIsRefused) {
  const std::string token = PageToken("sessions", "inc-1");
  for (const std::string& bad :
       {std::string("zz"), std::string(50, '\0'), std::string("not a token"), std::string("="),
        std::string(22, 'A'), token.substr(0, token.size() - 2), token + "AA", "A" + token,
        PageToken("agents", "inc-1")}) {
    EXPECT_EQ(ParsePageToken("sessions", bad).status(),
              InvalidField("page_token", "is not a token of an earlier page"))
        << bad;
  }
}

}  // namespace
}  // namespace failback
