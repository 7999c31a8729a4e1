// Which token a request of a client of another API shows.

#include "gateway/door/shown_token.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

std::string Basic(const std::string& pair) {
  return absl::StrCat("Basic ", absl::Base64Escape(pair));
}

TEST(ShownTokenTest, TheMostExplicitPlaceDecides) {
  const std::string basic = Basic("user:of-basic");  // a request refers to its headers
  http::Request request;
  EXPECT_EQ(BearerOf(request, TokenPlaces::kConsul), "");
  request.headers.emplace_back("Authorization", basic);
  EXPECT_EQ(BearerOf(request, TokenPlaces::kAuthorization), "Bearer of-basic");
  EXPECT_EQ(BearerOf(request, TokenPlaces::kConsul), "Bearer of-basic");
  request.query.emplace_back("token", "of-query");
  EXPECT_EQ(BearerOf(request, TokenPlaces::kConsul), "Bearer of-query");
  request.headers.emplace_back("X-Consul-Token", "of-header");
  EXPECT_EQ(BearerOf(request, TokenPlaces::kConsul), "Bearer of-header");
  EXPECT_EQ(BearerOf(request, TokenPlaces::kAuthorization), "Bearer of-basic");
}

TEST(ShownTokenTest, WhatIsNoTokenStaysAsItCame) {
  for (const std::string& shown : {std::string("Bearer t"), std::string("Basic %%%"),
                                   Basic("no colon"), Basic("user:"), std::string("Digest x")}) {
    http::Request request;
    request.headers.emplace_back("Authorization", shown);
    EXPECT_EQ(BearerOf(request, TokenPlaces::kConsul), shown);
  }
}

}  // namespace
}  // namespace failback
