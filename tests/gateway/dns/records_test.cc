// Which instances are given, and as what.

#include "gateway/dns/records.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/dns/names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/dns/dns_messages.h"
#include "tests/util/instances.h"

namespace failback::dns {
namespace {

using registry::v1::ServiceInstance;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ServiceInstance At(const std::string& id, const std::string& address, uint32_t port = 80) {
  ServiceInstance instance = MakeInstance(id, port);
  instance.set_address(address);
  return instance;
}

// "10.0.0.1:80 100 0": address, port, weight, priority.
std::vector<std::string> Lines(const ServiceRecords& records, const std::string& tag = "") {
  std::vector<std::string> lines;
  for (const Target& target : records.Of(tag).targets) {
    std::string where;
    if (target.kind == Target::Kind::kName) where = ToText(records.names()[target.name]);
    for (const char c : target.kind == Target::Kind::kName ? "" : target.address()) {
      absl::StrAppend(&where, where.empty() ? "" : ".", static_cast<uint8_t>(c));
    }
    lines.push_back(
        absl::StrCat(where, ":", target.port, " ", target.weight, " ", target.priority));
  }
  return lines;
}

TEST(RecordsTest, HealthyOnesAreGiven_WithTheirWeights) {
  ServiceInstance light = At("a", "10.0.0.1", 80);
  light.set_weight(1);
  const ServiceRecords records(SetOf({light, At("b", "10.0.0.2", 81)}), {});
  EXPECT_THAT(Lines(records), ElementsAre("10.0.0.1:80 1 0", "10.0.0.2:81 100 0"));
  EXPECT_THAT(records.Of("").ipv4, SizeIs(2));
  EXPECT_FALSE(records.last_resort());
}

std::vector<ServiceInstance> AllUnwell() {
  ServiceInstance unhealthy = At("a", "10.0.0.1");
  unhealthy.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  ServiceInstance draining = At("b", "10.0.0.2");
  draining.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  ServiceInstance offline = At("c", "10.0.0.3");
  offline.mutable_offline()->set_reason("broken");
  ServiceInstance weightless = At("d", "10.0.0.4");
  weightless.set_weight(0);
  return {unhealthy, draining, offline, weightless};
}

TEST(RecordsTest, UnwellOnes_AreLeftOut) {
  std::vector<ServiceInstance> instances = AllUnwell();
  instances.push_back(At("e", "10.0.0.5"));
  EXPECT_THAT(Lines(ServiceRecords(SetOf(instances), {})), ElementsAre("10.0.0.5:80 100 0"));
}

TEST(RecordsTest, WhenAllAreUnwell_AllAreGiven_UnlessConfiguredOtherwise) {
  const ServiceRecords all(SetOf(AllUnwell()), {});
  EXPECT_TRUE(all.last_resort());
  EXPECT_THAT(Lines(all), ElementsAre("10.0.0.1:80 100 0", "10.0.0.2:80 100 0", "10.0.0.3:80 100 0",
                                      "10.0.0.4:80 0 0"));
  RecordOptions options;
  options.unhealthy_if_no_others = false;
  const ServiceRecords none(SetOf(AllUnwell()), options);
  EXPECT_THAT(Lines(none), IsEmpty());
  EXPECT_FALSE(none.last_resort());
}

TEST(RecordsTest, WhyAnInstanceIsLeftOut_IsSaid) {
  std::vector<std::string> texts;
  for (const ServiceInstance& instance : AllUnwell()) {
    texts.emplace_back(LeftOutText(WhyLeftOut(InstanceView(instance))));
  }
  texts.emplace_back(LeftOutText(WhyLeftOut(InstanceView(At("e", "not a name")))));
  texts.emplace_back(LeftOutText(WhyLeftOut(InstanceView(At("f", "db.example.com")))));
  EXPECT_THAT(texts, ElementsAre("unhealthy", "draining", "an operator has taken it offline",
                                 "its weight is zero",
                                 "its address is neither an IP address nor a host name", ""));
}

TEST(RecordsTest, TheSameAddressAndPort_IsGivenOnce) {
  const ServiceRecords records(
      SetOf({At("a", "10.0.0.1", 80), At("b", "10.0.0.1", 81), At("c", "10.0.0.1", 80)}), {});
  EXPECT_THAT(Lines(records), ElementsAre("10.0.0.1:80 100 0", "10.0.0.1:81 100 0"));
  EXPECT_THAT(records.Of("").ipv4, SizeIs(1));
  EXPECT_TRUE(records.Of("").targets[0].first_of_address);
  EXPECT_FALSE(records.Of("").targets[1].first_of_address);
}

TEST(RecordsTest, Ipv6AndHostNames) {
  const ServiceRecords records(
      SetOf({At("a", "2001:db8::1"), At("b", "DB.example.com"), At("c", "10.0.0.1"),
             At("d", "db.example.com", 81), At("e", "under score!")}),
      {});
  EXPECT_THAT(records.Of("").ipv4, SizeIs(1));
  EXPECT_THAT(records.Of("").ipv6, SizeIs(1));
  EXPECT_THAT(records.names(), SizeIs(1)) << "upper and lower case are the same";
  EXPECT_THAT(records.Of("").targets, SizeIs(4)) << "what is no name is left out";
}

TEST(RecordsTest, TheOwnZoneComesFirst) {
  ServiceInstance near = At("a", "10.0.0.1");
  near.set_zone("eu-1");
  ServiceInstance far = At("b", "10.0.0.2");
  far.set_zone("eu-2");
  RecordOptions options;
  options.zone = "eu-1";
  EXPECT_THAT(Lines(ServiceRecords(SetOf({near, far, At("c", "10.0.0.3")}), options)),
              ElementsAre("10.0.0.1:80 100 0", "10.0.0.2:80 100 1", "10.0.0.3:80 100 1"));
}

TEST(RecordsTest, TagsAreThoseOfTheMetadata) {
  ServiceInstance both = At("a", "10.0.0.1");
  (*both.mutable_metadata())["tags"] = "canary, eu,,canary";
  ServiceInstance one = At("b", "10.0.0.2");
  (*one.mutable_metadata())["tags"] = "eu";
  ServiceInstance unwell = At("c", "10.0.0.3");
  (*unwell.mutable_metadata())["tags"] = "eu";
  unwell.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  const ServiceRecords records(SetOf({both, one, unwell, At("d", "10.0.0.4")}), {});
  EXPECT_THAT(Lines(records, "canary"), ElementsAre("10.0.0.1:80 100 0"));
  EXPECT_THAT(Lines(records, "eu"), ElementsAre("10.0.0.1:80 100 0", "10.0.0.2:80 100 0"));
  EXPECT_THAT(Lines(records, "other"), IsEmpty());
  EXPECT_THAT(Lines(records), SizeIs(3));
}

TEST(RecordsTest, TagsAreBounded) {
  std::vector<ServiceInstance> instances;
  for (size_t i = 0; i < 40; ++i) {
    std::string tags;
    for (size_t tag = 0; tag < 20; ++tag) absl::StrAppend(&tags, "t", i, "-", tag, ",");
    instances.push_back(At(absl::StrCat(100 + i), absl::StrCat("10.0.0.", i)));
    (*instances.back().mutable_metadata())["tags"] = tags;
  }
  const ServiceRecords records(SetOf(instances), {});
  size_t found = 0;
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_THAT(Lines(records, absl::StrCat("t", i, "-16")), IsEmpty());
    for (size_t tag = 0; tag < 16; ++tag) {
      found += records.Of(absl::StrCat("t", i, "-", tag)).targets.size();
    }
  }
  EXPECT_EQ(found, kMaxTagsOfService);
}

TEST(RecordsTest, EachTargetFindsItsInstance) {
  std::vector<ServiceInstance> instances;
  for (int i = 0; i < 200; ++i) {
    instances.push_back(At(absl::StrCat("i", 1000 + i), absl::StrCat("10.0.1.", 199 - i)));
  }
  const ServiceRecords records(SetOf(instances), {});
  for (const Target& target : records.Of("").targets) {
    const ServiceInstance instance = ParseInstance(records.InstanceOf(target));
    EXPECT_EQ(instance.address(), absl::StrCat("10.0.1.", static_cast<uint8_t>(target.ip[3])));
  }
}

}  // namespace
}  // namespace failback::dns
