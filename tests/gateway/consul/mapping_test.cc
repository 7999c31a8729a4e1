// An instance and a Consul service are each other: there and back, and what has no counterpart.

#include "gateway/consul/mapping.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/instances.h"

namespace failback::consul {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

ServiceDefinition Orders() {
  ServiceDefinition service;
  service.name = "orders";
  service.id = "o1";
  service.address = "10.0.0.7";
  service.port = 8080;
  return service;
}

std::string Error(const ServiceDefinition& service) {
  return std::string(ToInstance(service, "eu", "", CheckStatus::kPassing).status().message());
}

TEST(MappingTest, AServiceIsAnInstance_AndBack) {
  ServiceDefinition service = Orders();
  service.tags = {"canary", "a,b", "50%2C"};
  service.meta = {{"version", "2"}};
  service.weight = 7;
  service.zone = "eu-1";
  const auto instance = ToInstance(service, "eu", "", CheckStatus::kPassing);
  ASSERT_TRUE(instance.ok()) << instance.status();
  EXPECT_EQ(instance->key().namespace_(), "eu");
  EXPECT_EQ(instance->metadata().at("tags"), "canary,a%2Cb,50%252C");
  EXPECT_EQ(instance->metadata().at("version"), "2");
  const ServiceEntry entry{InstanceView(*instance)};
  EXPECT_EQ(entry.service, "orders");
  EXPECT_EQ(entry.id, "o1");
  EXPECT_EQ(entry.address, "10.0.0.7");
  EXPECT_EQ(entry.port, 8080u);
  EXPECT_EQ(entry.weight, 7u);
  EXPECT_EQ(entry.zone, "eu-1");
  EXPECT_THAT(entry.tags, ElementsAreArray(service.tags));
  ASSERT_EQ(entry.meta.size(), 1u);
  EXPECT_EQ(entry.meta[0].value, "2");
  EXPECT_EQ(entry.status, CheckStatus::kPassing);
}

TEST(MappingTest, EachStatusIsTheSameThroughAllDoors) {
  auto instance = ToInstance(Orders(), "eu", "", CheckStatus::kPassing);
  ASSERT_TRUE(instance.ok());
  for (const CheckStatus status :
       {CheckStatus::kWarning, CheckStatus::kCritical, CheckStatus::kPassing}) {
    SetStatus(status, &*instance);
    EXPECT_EQ(ServiceEntry{InstanceView(*instance)}.status, status) << StatusName(status);
    EXPECT_EQ(instance->status(), status == CheckStatus::kCritical
                                      ? registry::v1::HEALTH_STATUS_UNHEALTHY
                                      : registry::v1::HEALTH_STATUS_HEALTHY);
  }
  EXPECT_TRUE(instance->metadata().empty());
  instance->set_status(registry::v1::HEALTH_STATUS_DRAINING);
  EXPECT_EQ(ServiceEntry{InstanceView(*instance)}.status, CheckStatus::kCritical);
  instance->set_status(registry::v1::HEALTH_STATUS_HEALTHY);
  instance->mutable_offline();
  EXPECT_EQ(ServiceEntry{InstanceView(*instance)}.status, CheckStatus::kCritical);
  EXPECT_TRUE(ServiceEntry{InstanceView(*instance)}.offline);
}

TEST(MappingTest, ManyTags_TakeSeveralEntries) {
  ServiceDefinition service = Orders();
  for (int i = 0; i < 20; ++i) service.tags.push_back(std::string(150, static_cast<char>('a' + i)));
  const auto instance = ToInstance(service, "eu", "", CheckStatus::kPassing);
  ASSERT_TRUE(instance.ok()) << instance.status();
  EXPECT_EQ(instance->metadata_size(), 4);
  EXPECT_THAT((ServiceEntry{InstanceView(*instance)}.tags), ElementsAreArray(service.tags));
}

TEST(MappingTest, TagsThatOthersWrote_AreRead) {
  ServiceInstance instance = MakeInstance("a");
  (*instance.mutable_metadata())["tags"] = " a, b ,,100%";
  EXPECT_THAT((ServiceEntry{InstanceView(instance)}.tags), ElementsAre("a", "b", "100%"));
  EXPECT_EQ((ServiceEntry{InstanceView(instance)}.weight), 100u);
}

TEST(MappingTest, WhatCannotBe_IsSaidInTheClientsWords) {
  ServiceDefinition service = Orders();
  service.name = "a b";
  EXPECT_THAT(Error(service), HasSubstr("Name: "));
  service = Orders();
  service.id = "a b";
  EXPECT_THAT(Error(service), HasSubstr("ID: "));
  service = Orders();
  service.address = "";
  EXPECT_THAT(Error(service), HasSubstr("Address: is required"));
  EXPECT_TRUE(ToInstance(service, "eu", "10.0.0.9", CheckStatus::kPassing).ok());
  service = Orders();
  service.address = "a..b";
  EXPECT_THAT(Error(service), HasSubstr("Address: "));
  service = Orders();
  service.meta["tags"] = "x";
  EXPECT_THAT(Error(service), HasSubstr("Meta[\"tags\"]: "));
  service = Orders();
  service.meta["k"] = std::string(2000, 'x');
  EXPECT_THAT(Error(service), HasSubstr("Meta"));
  service = Orders();
  service.tags = {"a", std::string(2000, 'x')};
  EXPECT_THAT(Error(service), HasSubstr("Tags[1]: is longer than 1024 bytes"));
}

}  // namespace
}  // namespace failback::consul
