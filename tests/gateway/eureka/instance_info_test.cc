// What clients of Eureka register, as JSON and XML, and the same instance back.

#include "gateway/eureka/instance_info.h"

#include <string>

#include "gateway/markup/fields.h"
#include "gateway/markup/xml_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/instances.h"

namespace failback::eureka {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<Registration> Parse(const std::string& json, const std::string& app = "ORDERS") {
  const auto value = markup::ParseJson(json);
  if (!value.ok()) return value.status();
  return ParseRegistration(*value, app, "default");
}

std::string Error(const std::string& json) { return std::string(Parse(json).status().message()); }

// As npm's eureka-js-client writes it.
constexpr char kNpm[] = R"({"instance":{
  "app":"orders","hostName":"host-7","ipAddr":"10.0.0.7","instanceId":"o1","vipAddress":"orders",
  "port":{"$":8080,"@enabled":"true"},"status":"UP",
  "dataCenterInfo":{"@class":"com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo",
                    "name":"MyOwn"},
  "metadata":{"zone":"eu-1","weight":"7","version":"2"}}})";

// As Java's clients do.
constexpr char kXml[] = R"(<?xml version="1.0"?><instance>
  <instanceId>o1</instanceId><hostName>host-7</hostName><app>ORDERS</app><ipAddr>10.0.0.7</ipAddr>
  <status>UP</status><overriddenstatus>UNKNOWN</overriddenstatus>
  <port enabled="true">8080</port><securePort enabled="false">443</securePort>
  <countryId>1</countryId>
  <dataCenterInfo class="com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo">
    <name>MyOwn</name></dataCenterInfo>
  <leaseInfo><renewalIntervalInSecs>5</renewalIntervalInSecs><durationInSecs>15</durationInSecs>
    <registrationTimestamp>0</registrationTimestamp></leaseInfo>
  <metadata class="java.util.Collections$EmptyMap"/>
  <homePageUrl>http://host-7:8080/</homePageUrl><vipAddress>orders</vipAddress>
  <isCoordinatingDiscoveryServer>false</isCoordinatingDiscoveryServer>
  <lastUpdatedTimestamp>1</lastUpdatedTimestamp><lastDirtyTimestamp>1</lastDirtyTimestamp>
  <actionType>ADDED</actionType></instance>)";

TEST(InstanceInfoTest, AnInstanceOfNpm_ThereAndBack) {
  const auto registration = Parse(kNpm);
  ASSERT_TRUE(registration.ok()) << registration.status();
  const ServiceInstance& instance = registration->instance;
  EXPECT_EQ(instance.key().service(), "orders");
  EXPECT_EQ(instance.key().instance_id(), "o1");
  EXPECT_EQ(instance.address(), "10.0.0.7");
  EXPECT_EQ(instance.port(), 8080u);
  EXPECT_EQ(instance.zone(), "eu-1");
  EXPECT_EQ(instance.weight(), 7u);
  EXPECT_EQ(instance.metadata().at("version"), "2");
  EXPECT_EQ(registration->lease, absl::Seconds(90));
  const Info info{InstanceView(instance)};
  EXPECT_EQ(info.app, "ORDERS");
  EXPECT_EQ(info.host_name, "host-7");
  EXPECT_EQ(info.ip_address, "10.0.0.7");
  EXPECT_EQ(info.vip, "orders");
  EXPECT_EQ(info.status, Status::kUp);
  EXPECT_EQ(info.weight, "7");
  EXPECT_EQ(info.zone, "eu-1");
  ASSERT_EQ(info.metadata.size(), 1u);
}

TEST(InstanceInfoTest, XmlIsTheSame) {
  const auto value = markup::ParseXml(kXml);
  ASSERT_TRUE(value.ok()) << value.status();
  const auto registration = ParseRegistration(*value, "orders", "default");
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(registration->lease, absl::Seconds(15));
  const Info info{InstanceView(registration->instance)};
  EXPECT_EQ(info.lease_seconds, 15u);
  EXPECT_EQ(info.renewal_seconds, 5u);
  EXPECT_EQ(info.home_page_url, "http://host-7:8080/");
  EXPECT_EQ(info.port, 8080u);
  EXPECT_FALSE(info.secure_port_enabled);
  EXPECT_THAT(info.metadata, IsEmpty());
}

TEST(InstanceInfoTest, EmptyElementsSayNothing) {
  const auto value = markup::ParseXml(
      "<instance><hostName>h</hostName><port>80</port><metadata/><leaseInfo/><dataCenterInfo/>"
      "<homePageUrl/></instance>");
  ASSERT_TRUE(value.ok()) << value.status();
  const auto registration = ParseRegistration(*value, "orders", "default");
  EXPECT_TRUE(registration.ok()) << registration.status();
}

TEST(InstanceInfoTest, EachStatus_ThereAndBack) {
  for (const Status status :
       {Status::kUp, Status::kDown, Status::kStarting, Status::kOutOfService, Status::kUnknown}) {
    const auto registration =
        Parse(std::string(R"({"instance":{"hostName":"h","port":1,"status":")") +
              StatusName(status) + "\"}}");
    ASSERT_TRUE(registration.ok()) << registration.status();
    EXPECT_EQ(Info{InstanceView(registration->instance)}.status, status) << StatusName(status);
  }
  ServiceInstance marked = MakeInstance("a");
  marked.mutable_offline();
  EXPECT_EQ(Info{InstanceView(marked)}.status, Status::kOutOfService);
}

TEST(InstanceInfoTest, OnlyTheSecurePort) {
  const auto registration = Parse(
      R"({"instance":{"hostName":"h","port":{"$":80,"@enabled":"false"},
          "securePort":{"$":8443,"@enabled":true},"vipAddress":"a,b","secureVipAddress":"c"}})");
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(registration->instance.port(), 8443u);
  const Info info{InstanceView(registration->instance)};
  EXPECT_TRUE(info.secure_port_enabled);
  EXPECT_FALSE(info.port_enabled);
  EXPECT_EQ(info.secure_port, 8443u);
  EXPECT_TRUE(info.HasVip("a"));
  EXPECT_TRUE(info.HasVip("b"));
  EXPECT_FALSE(info.HasVip("a,b"));
  EXPECT_TRUE(info.HasSecureVip("c"));
}

TEST(InstanceInfoTest, WhatOthersRegistered_IsShown) {
  ServiceInstance instance = MakeInstance("a", 8080, "pay/ments");
  const Info info{InstanceView(instance)};
  EXPECT_EQ(info.app, "PAY/MENTS");
  EXPECT_EQ(info.host_name, "10.0.0.1");
  EXPECT_EQ(info.vip, "pay/ments");
  EXPECT_EQ(info.weight, "");
  EXPECT_EQ(ServiceOfApp("PAY/MENTS"), "pay/ments");
}

TEST(InstanceInfoTest, Amazon_HasItsZone) {
  const auto registration = Parse(
      R"({"instance":{"hostName":"h","port":1,"dataCenterInfo":{"name":"Amazon",
          "metadata":{"availability-zone":"us-east-1c","instance-id":"i-1"}}}})");
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(registration->instance.zone(), "us-east-1c");
  const Info info{InstanceView(registration->instance)};
  EXPECT_EQ(info.data_center, "Amazon");
  EXPECT_EQ(info.data_center_metadata.size(), 2u);
}

TEST(InstanceInfoTest, WhatIsWrong_IsNamed) {
  EXPECT_EQ(Error("{}"), "instance: is required");
  EXPECT_THAT(Error(R"({"instance":[]})"), HasSubstr("instance: is a list"));
  EXPECT_THAT(Error(R"({"instance":{"port":1}})"), HasSubstr("instance.instanceId: is required"));
  EXPECT_THAT(Error(R"({"instance":{"hostName":"h"}})"), HasSubstr("instance.port: is required"));
  EXPECT_THAT(Error(R"({"instance":{"hostName":"h","port":{"$":70000}}})"),
              HasSubstr("instance.port: a number in 0..65535"));
  EXPECT_THAT(Error(R"({"instance":{"hostName":"h","port":1,"app":"users"}})"),
              HasSubstr("instance.app: \"users\" is not the app of the path"));
  EXPECT_THAT(Error(R"({"instance":{"hostName":"h","port":1,"status":"GOOD"}})"),
              HasSubstr("instance.status: \"GOOD\" is not UP"));
  EXPECT_THAT(Error(R"({"instance":{"hostName":"h","port":1,"colour":"red"}})"),
              HasSubstr("instance.colour: is not supported; allowed: app, hostName"));
  EXPECT_THAT(Error(R"({"instance":{"hostName":"h","port":1,"metadata":{"eureka.x":"1"}}})"),
              HasSubstr("instance.metadata[\"eureka.x\"]"));
  EXPECT_THAT(Error(R"({"instance":{"hostName":"h","port":1,"leaseInfo":{"durationInSecs":0}}})"),
              HasSubstr("instance.leaseInfo"));
  EXPECT_THAT(Error(R"({"instance":{"hostName":"a b","port":1,"instanceId":"x"}})"),
              HasSubstr("instance.ipAddr"));
}

}  // namespace
}  // namespace failback::eureka
