// What clients of Consul register, as they write it, and what of it is refused.

#include "gateway/consul/definition.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback::consul {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Kind = CheckDefinition::Kind;

std::string ServiceError(const std::string& body) {
  return std::string(ParseService(body).status().message());
}

TEST(DefinitionTest, Npm_WritesItSo) {
  const auto service = ParseService(
      R"({"Name":"orders","ID":"o1","Tags":["a","b"],"Meta":{"k":"v"},"Address":"10.0.0.1",
          "Port":8080,"Check":{"TTL":"10s","Notes":"n","Status":"passing"}})");
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_EQ(service->id, "o1");
  EXPECT_EQ(service->port, 8080u);
  EXPECT_THAT(service->tags, ElementsAre("a", "b"));
  EXPECT_THAT(service->meta, ElementsAre(Pair("k", "v")));
  ASSERT_EQ(service->checks.size(), 1u);
  EXPECT_EQ(service->checks[0].kind, Kind::kTtl);
  EXPECT_EQ(service->checks[0].ttl, absl::Seconds(10));
  EXPECT_EQ(service->checks[0].status, CheckStatus::kPassing);
}

TEST(DefinitionTest, Python_WritesItSo) {
  const auto service = ParseService(
      R"({"name":"orders","address":"10.0.0.1","port":8080,"tags":["a"],
          "check":{"http":"http://10.0.0.1:8080/health","interval":"5s","timeout":"1s",
                   "DeregisterCriticalServiceAfter":"1m30s"}})");
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_EQ(service->id, "orders") << "the name, without an id";
  EXPECT_EQ(service->checks[0].kind, Kind::kHttp);
  EXPECT_EQ(service->checks[0].target, "http://10.0.0.1:8080/health");
  EXPECT_EQ(service->checks[0].interval, absl::Seconds(5));
  EXPECT_EQ(service->checks[0].deregister_after, absl::Seconds(90));
  EXPECT_EQ(service->checks[0].status, CheckStatus::kCritical);
}

TEST(DefinitionTest, Go_WritesItSo) {
  const auto service = ParseService(
      R"({"Name":"orders","Port":1,"Weights":{"Passing":7,"Warning":1},"EnableTagOverride":false,
          "Proxy":null,"Connect":{},"Checks":[{"TCP":"a:1","Interval":"1s"},
          {"GRPC":"a:1/x","GRPCUseTLS":true,"Interval":1000000000,"FailuresBeforeCritical":3}],
          "Locality":{"Region":"eu","Zone":"eu-1"}})");
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_EQ(service->weight, 7u);
  EXPECT_EQ(service->zone, "eu-1");
  ASSERT_EQ(service->checks.size(), 2u);
  EXPECT_EQ(service->checks[0].kind, Kind::kTcp);
  EXPECT_EQ(service->checks[1].interval, absl::Seconds(1));
  EXPECT_EQ(service->checks[1].failures, 3u);
  EXPECT_TRUE(service->checks[1].tls);
}

TEST(DefinitionTest, WhatIsNotDone_IsRefusedByName) {
  EXPECT_EQ(ServiceError(R"({"Port":1})"), "Name: is required");
  EXPECT_EQ(ServiceError(R"({"Name":"a"})"), "Port: is required, 1 to 65535");
  EXPECT_EQ(ServiceError(R"({"Name":"a","Port":70000})"), "Port: 70000 is not in 0..65535");
  EXPECT_THAT(ServiceError(R"({"Name":"a","Port":1,"Connect":{"SidecarService":{"Port":2}}})"),
              HasSubstr("Connect: is not supported; allowed: Name, ID,"));
  EXPECT_THAT(ServiceError(R"({"Name":"a","Port":1,"EnableTagOverride":true})"),
              HasSubstr("EnableTagOverride: is not supported"));
  EXPECT_THAT(ServiceError(R"({"Name":"a","Port":1,"Check":{"Args":["ls"],"Interval":"1s"}})"),
              HasSubstr("Check.TTL: a check needs one of TTL, HTTP, TCP, GRPC"));
  EXPECT_THAT(ServiceError(R"({"Name":"a","Port":1,"Checks":[{"TTL":"1s","TCP":"a:1"}]})"),
              HasSubstr("Checks[0].TTL: only one of"));
  EXPECT_THAT(ServiceError(R"({"Name":"a","Port":1,"Check":{"HTTP":"http://a"}})"),
              HasSubstr("Check.Interval: is required with HTTP"));
  EXPECT_THAT(ServiceError(R"({"Name":"a","Port":1,"Check":{"TTL":"soon"}})"),
              HasSubstr("Check.TTL: \"soon\" is no duration"));
  EXPECT_THAT(ServiceError(R"({"Name":"a","Port":1,"Check":{"TTL":"1s","Status":"ok"}})"),
              HasSubstr("Check.Status: \"ok\" is not passing, warning or critical"));
  EXPECT_THAT(ServiceError("["), HasSubstr("body: is no valid JSON"));
}

TEST(DefinitionTest, ACheckByItself_IsOfAService) {
  const auto check = ParseCheck(R"({"name":"alive","ttl":"5s","serviceid":"o1"})");
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(check->id, "alive");
  EXPECT_EQ(check->service_id, "o1");
  EXPECT_THAT(ParseCheck(R"({"name":"alive","ttl":"5s"})").status().message(),
              HasSubstr("ServiceID: is required"));
}

TEST(DefinitionTest, AnUpdate_HasAStatus) {
  EXPECT_EQ(ParseCheckUpdate(R"({"Status":"warning","Output":"slow"})")->output, "slow");
  EXPECT_THAT(ParseCheckUpdate("{}").status().message(), HasSubstr("Status: is required"));
}

TEST(DefinitionTest, Durations_AreThoseOfGo) {
  EXPECT_EQ(*ParseGoDuration("wait", "1m30s"), absl::Seconds(90));
  EXPECT_EQ(*ParseGoDuration("wait", "1.5h"), absl::Minutes(90));
  for (const char* text : {"", "5", "-1s", "inf", "9000h", "1d"}) {
    EXPECT_FALSE(ParseGoDuration("wait", text).ok()) << text;
  }
}

}  // namespace
}  // namespace failback::consul
