#include "registry/model/selector.h"

#include "gtest/gtest.h"

namespace failback {
namespace {

ServiceInstance Instance() {
  ServiceInstance instance;
  instance.mutable_key()->set_namespace_("default");
  instance.mutable_key()->set_service("orders");
  instance.mutable_key()->set_instance_id("a");
  instance.set_zone("z1");
  (*instance.mutable_metadata())["color"] = "blue";
  (*instance.mutable_metadata())["size"] = "1";
  return instance;
}

TEST(SelectorTest, AllThatIsSetMustHold) {
  Selector selector;
  selector.set_service("orders");
  EXPECT_TRUE(SelectorMatches(selector, Instance()));
  selector.add_zones("z2");
  EXPECT_FALSE(SelectorMatches(selector, Instance()));
  selector.add_zones("z1");
  EXPECT_TRUE(SelectorMatches(selector, Instance()));
  (*selector.mutable_metadata())["color"] = "blue";
  EXPECT_TRUE(SelectorMatches(selector, Instance()));
  (*selector.mutable_metadata())["size"] = "2";
  EXPECT_FALSE(SelectorMatches(selector, Instance()));
  (*selector.mutable_metadata()).erase("size");
  (*selector.mutable_metadata())["absent"] = "";
  EXPECT_FALSE(SelectorMatches(selector, Instance())) << "an empty value is not a missing entry";
}

TEST(SelectorTest, ServiceAndNamespace) {
  Selector selector;
  EXPECT_TRUE(SelectorMatches(selector, Instance())) << "empty means default, any service";
  selector.set_service("payments");
  EXPECT_FALSE(SelectorMatches(selector, Instance()));
  selector.set_service("orders");
  selector.set_namespace_("prod");
  EXPECT_FALSE(SelectorMatches(selector, Instance()));
  selector.set_namespace_("default");
  ServiceInstance bare = Instance();
  bare.mutable_key()->clear_namespace_();
  EXPECT_TRUE(SelectorMatches(selector, bare));
}

TEST(SelectorTest, AnUnspecifiedStatusIsHealthy) {
  Selector selector;
  selector.add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  EXPECT_TRUE(SelectorMatches(selector, Instance()));
  ServiceInstance draining = Instance();
  draining.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  EXPECT_FALSE(SelectorMatches(selector, draining));
  selector.add_statuses(registry::v1::HEALTH_STATUS_DRAINING);
  EXPECT_TRUE(SelectorMatches(selector, draining));
}

TEST(SelectorTest, WhatAnOperatorTookOutOfRotationIsUnhealthy) {
  ServiceInstance marked = Instance();
  marked.mutable_offline();
  Selector selector;
  EXPECT_TRUE(SelectorMatches(selector, marked));
  selector.add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  EXPECT_FALSE(SelectorMatches(selector, marked));
  marked.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  selector.add_statuses(registry::v1::HEALTH_STATUS_DRAINING);
  EXPECT_FALSE(SelectorMatches(selector, marked));
  selector.add_statuses(registry::v1::HEALTH_STATUS_UNHEALTHY);
  EXPECT_TRUE(SelectorMatches(selector, marked));
}

TEST(SelectorTest, CanonicalIsTheSameForTheSameMeaning) {
  Selector one;
  one.set_service("orders");
  one.add_zones("b");
  one.add_zones("a");
  one.add_zones("b");
  one.add_statuses(registry::v1::HEALTH_STATUS_UNSPECIFIED);
  (*one.mutable_metadata())["x"] = "1";
  (*one.mutable_metadata())["y"] = "2";
  Selector two;
  two.set_namespace_("default");
  two.set_service("orders");
  two.add_zones("a");
  two.add_zones("b");
  two.add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  (*two.mutable_metadata())["y"] = "2";
  (*two.mutable_metadata())["x"] = "1";
  EXPECT_EQ(CanonicalSelector(one), CanonicalSelector(two));
  two.add_zones("c");
  EXPECT_NE(CanonicalSelector(one), CanonicalSelector(two));
}

}  // namespace
}  // namespace failback
