// Paths and queries, decoded; which handler a request is for; heads of responses.

#include "gateway/http/router.h"

#include <string>
#include <vector>

#include "gateway/http/response_head.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback::http {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

void Nothing(const Request&, Responder) {}

TEST(RouterTest, ASlashThatIsEncodedStaysInItsSegment) {
  EXPECT_THAT(ParsePath("/v1/a%2Fb/c+d").value(), ElementsAre("v1", "a/b", "c+d"));
  EXPECT_THAT(ParsePath("/v1/a%252Fb").value(), ElementsAre("v1", "a%2Fb"));
  EXPECT_THAT(ParsePath("/").value(), IsEmpty());
  EXPECT_THAT(ParsePath("/v1/").value(), ElementsAre("v1"));
  EXPECT_THAT(ParsePath("//v1").value(), ElementsAre("", "v1"));
}

TEST(RouterTest, WhatCannotBeDecodedIsNamed) {
  for (const char* path : {"", "v1", "/%", "/%4", "/%zz", "/a/%2", "*"}) {
    EXPECT_EQ(ParsePath(path).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
  const absl::Status status = ParsePath("/" + std::string(5000, 'x') + "%").status();
  EXPECT_LT(status.message().size(), 300u) << "it does not repeat what was sent";
}

TEST(RouterTest, AQueryKeepsItsOrderAndItsRepetitions) {
  EXPECT_THAT(ParseQuery("b=1&a=x+y%26z&b=2&empty&=v").value(),
              ElementsAre(Pair("b", "1"), Pair("a", "x y&z"), Pair("b", "2"), Pair("empty", ""),
                          Pair("", "v")));
  EXPECT_THAT(ParseQuery("").value(), IsEmpty());
  EXPECT_FALSE(ParseQuery("a=%4").ok());
}

TEST(RouterTest, AParameterIsAnySegmentThatIsNotEmpty) {
  Router router;
  router.Add("GET", "/v1/services/{service}", Nothing);
  router.Add("PUT", "/v1/services/{service}/instances/{id}", Nothing);
  router.Add("GET", "/", Nothing);
  EXPECT_THAT(router.Find("GET", {"v1", "services", "a/b"}).parameters, ElementsAre("a/b"));
  EXPECT_THAT(router.Find("PUT", {"v1", "services", "a", "instances", "1"}).parameters,
              ElementsAre("a", "1"));
  EXPECT_NE(router.Find("GET", {}).handler, nullptr);
  const Router::Match empty = router.Find("GET", {"v1", "services", ""});
  EXPECT_EQ(empty.handler, nullptr);
  EXPECT_THAT(empty.allowed, IsEmpty());
  const Router::Match method = router.Find("POST", {"v1", "services", "a"});
  EXPECT_EQ(method.handler, nullptr);
  EXPECT_THAT(method.allowed, ElementsAre("GET"));
}

TEST(ResponseHeadTest, AResponseReplacesWhatIsAlwaysSentAndBeginsNoOtherLine) {
  Response response = Response::Json("{}");
  response.status = 404;
  response.headers = {{"cache-control", "max-age=1"}, {"X-Evil", "a\r\nSet-Cookie: b"}};
  HeadOptions options;
  options.content_length = 2;
  options.keep_alive = false;
  const std::string head =
      FormatHead(response, {{"Cache-Control", "no-store"}, {"X-Other", "1"}}, options);
  EXPECT_THAT(head, ::testing::StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(head, HasSubstr("cache-control: max-age=1\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("no-store")));
  EXPECT_THAT(head, Not(HasSubstr("Set-Cookie")));
  EXPECT_THAT(head, HasSubstr("Content-Length: 2\r\n"));
  EXPECT_THAT(head, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(head, ::testing::EndsWith("\r\n\r\n"));
}

}  // namespace
}  // namespace failback::http
