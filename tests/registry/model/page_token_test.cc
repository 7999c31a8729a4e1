#include "registry/model/page_token.h"

#include <string>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
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

TEST(ListPlace, IsAKeyAndABoundedSize) {
  registry::v1::ListRequest request;
  EXPECT_EQ(ListPlaceOf(request)->after, "");
  EXPECT_EQ(ListPlaceOf(request)->page_size, 1000u) << "not asked for: the most";
  request.set_page_size(5000);
  EXPECT_EQ(ListPlaceOf(request)->page_size, 1000u);
  request.set_page_size(7);
  registry::v1::InstanceKey key;
  key.set_namespace_("default");
  key.set_service("orders");
  key.set_instance_id("orders-1");
  request.set_page_token(ListPageToken(CanonicalKey(key)));
  EXPECT_EQ(ListPlaceOf(request)->after, CanonicalKey(key));
  EXPECT_EQ(ListPlaceOf(request)->page_size, 7u);
  for (const char* const bad : {"=", "zz", "b3JkZXJz"}) {
    request.set_page_token(bad);
    EXPECT_EQ(ListPlaceOf(request).status(), InvalidPageToken()) << bad;
  }
  EXPECT_EQ(ListPageToken(""), "") << "no page follows";
}

}  // namespace
}  // namespace failback
