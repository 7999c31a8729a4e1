#include "gateway/xds/endpoints.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/xds/service_name.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "tests/util/instances.h"

namespace failback::xds {
namespace {

using envoy::config::endpoint::v3::ClusterLoadAssignment;
using envoy::config::endpoint::v3::LocalityLbEndpoints;
using registry::v1::HealthStatus;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ServiceInstance Instance(int i, uint32_t weight = 100, const std::string& zone = "") {
  ServiceInstance instance = MakeInstance("orders", absl::StrCat("i", i));
  instance.set_address(absl::StrCat("10.", i / 65536, ".", i / 256 % 256, ".", i % 256));
  instance.set_weight(weight);
  instance.set_zone(zone);
  return instance;
}

ServiceEndpoints Endpoints(const std::vector<ServiceInstance>& instances) {
  ServiceEndpoints endpoints;
  for (const ServiceInstance& instance : instances) {
    endpoints[CanonicalKey(instance.key())] = ToEndpoint(instance);
  }
  return endpoints;
}

ClusterLoadAssignment Build(const std::vector<ServiceInstance>& instances,
                            const std::string& zone = "", bool zone_aware = false) {
  return BuildLoadAssignment("orders", Endpoints(instances), zone, zone_aware);
}

// "priority zone/sub_zone weight: addresses".
std::vector<std::string> Text(const ClusterLoadAssignment& assignment) {
  std::vector<std::string> lines;
  for (const LocalityLbEndpoints& locality : assignment.endpoints()) {
    std::string line = absl::StrCat(locality.priority(), " ", locality.locality().zone(), "/",
                                    locality.locality().sub_zone(), " ",
                                    locality.load_balancing_weight().value(), ":");
    for (const auto& endpoint : locality.lb_endpoints()) {
      absl::StrAppend(&line, " ", endpoint.endpoint().address().socket_address().address(), ":",
                      endpoint.endpoint().address().socket_address().port_value());
    }
    lines.push_back(line);
  }
  return lines;
}

// What gRPC's clients check, and refuse the resource for (grpc-go is the strictest).
void ExpectAcceptable(const ClusterLoadAssignment& assignment) {
  std::set<std::string> localities;
  std::set<std::string> addresses;
  std::map<uint32_t, uint64_t> sums;
  for (const LocalityLbEndpoints& locality : assignment.endpoints()) {
    ASSERT_TRUE(locality.has_locality());
    EXPECT_TRUE(
        localities
            .insert(absl::StrCat(locality.priority(), " ", locality.locality().SerializeAsString()))
            .second)
        << "a locality twice";
    EXPECT_GT(locality.load_balancing_weight().value(), 0u);
    EXPECT_GT(locality.lb_endpoints_size(), 0);
    sums[locality.priority()] += locality.load_balancing_weight().value();
    for (const auto& endpoint : locality.lb_endpoints()) {
      EXPECT_TRUE(addresses.insert(endpoint.endpoint().address().SerializeAsString()).second)
          << "an address twice";
    }
  }
  uint32_t expected = 0;
  for (const auto& [priority, sum] : sums) {
    EXPECT_EQ(priority, expected++) << "a gap in the priorities";
    EXPECT_LE(sum, 0xffffffffull);
  }
}

TEST(EndpointsTest, NoInstancesAreNoLocalities) {
  const ClusterLoadAssignment assignment = Build({});
  EXPECT_EQ(assignment.cluster_name(), "orders");
  EXPECT_EQ(assignment.endpoints_size(), 0);
}

TEST(EndpointsTest, InstancesOfOneZoneAndWeightShareALocality) {
  const ClusterLoadAssignment assignment =
      Build({Instance(1, 100, "a"), Instance(2, 100, "a"), Instance(3, 50, "a"), Instance(4)});
  ExpectAcceptable(assignment);
  EXPECT_THAT(Text(assignment), ElementsAre("0 /weight-100 100: 10.0.0.4:80",  //
                                            "0 a/weight-50 50: 10.0.0.3:80",
                                            "0 a/weight-100 200: 10.0.0.1:80 10.0.0.2:80"));
}

TEST(EndpointsTest, AnUnsetWeightIsAHundred) {
  ServiceInstance instance = Instance(1);
  instance.clear_weight();
  EXPECT_THAT(Text(Build({instance})), ElementsAre("0 /weight-100 100: 10.0.0.1:80"));
}

TEST(EndpointsTest, LeavesOutWhatIsNotToBeCalled) {
  std::vector<ServiceInstance> instances;
  for (const HealthStatus status :
       {registry::v1::HEALTH_STATUS_UNSPECIFIED, registry::v1::HEALTH_STATUS_HEALTHY,
        registry::v1::HEALTH_STATUS_UNHEALTHY, registry::v1::HEALTH_STATUS_DRAINING,
        static_cast<HealthStatus>(77)}) {
    instances.push_back(Instance(static_cast<int>(instances.size())));
    instances.back().set_status(status);
  }
  instances.push_back(Instance(9, 0));
  instances.push_back(Instance(10));
  instances.back().mutable_offline();
  EXPECT_THAT(Text(Build(instances)), ElementsAre("0 /weight-100 200: 10.0.0.0:80 10.0.0.1:80"));
}

TEST(EndpointsTest, LeavesOutHostNames) {
  ServiceInstance name = Instance(1);
  name.set_address("orders.example");
  ServiceInstance odd = Instance(2);
  odd.set_address("10.0.0");
  ServiceInstance six = Instance(3);
  six.set_address("fd00::3");
  EXPECT_THAT(Text(Build({name, odd, six})), ElementsAre("0 /weight-100 100: fd00::3:80"));
  EXPECT_FALSE(ToEndpoint(name).usable);
  EXPECT_TRUE(ToEndpoint(six).usable);
}

TEST(EndpointsTest, TellsAnAddressOnce) {
  ServiceInstance again = Instance(1, 300, "b");
  again.mutable_key()->set_instance_id("i2");
  ServiceInstance other_port = Instance(1);
  other_port.mutable_key()->set_instance_id("i3");
  other_port.set_port(81);
  const ClusterLoadAssignment assignment = Build({Instance(1), again, other_port});
  ExpectAcceptable(assignment);
  EXPECT_THAT(Text(assignment), ElementsAre("0 /weight-100 200: 10.0.0.1:80 10.0.0.1:81"));
}

TEST(EndpointsTest, TheFirstOfAnAddressIsAmongThoseThatServe) {
  ServiceInstance gone = Instance(1);
  gone.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  ServiceInstance next = Instance(1);
  next.mutable_key()->set_instance_id("i2");
  EXPECT_THAT(Text(Build({gone, next})), ElementsAre("0 /weight-100 100: 10.0.0.1:80"));
}

TEST(EndpointsTest, TheClientsZoneComesFirst) {
  const std::vector<ServiceInstance> instances = {Instance(1, 100, "a"), Instance(2, 100, "b"),
                                                  Instance(3, 100, "c")};
  ClusterLoadAssignment assignment = Build(instances, "b", true);
  ExpectAcceptable(assignment);
  EXPECT_THAT(Text(assignment),
              ElementsAre("0 b/weight-100 100: 10.0.0.2:80", "1 a/weight-100 100: 10.0.0.1:80",
                          "1 c/weight-100 100: 10.0.0.3:80"));
  // A zone without instances leaves no gap, and zones do not matter unless asked for.
  for (const auto& [zone, zone_aware] :
       std::vector<std::pair<std::string, bool>>{{"d", true}, {"", true}, {"b", false}}) {
    assignment = Build(instances, zone, zone_aware);
    ExpectAcceptable(assignment);
    EXPECT_THAT(Text(assignment),
                ElementsAre("0 a/weight-100 100: 10.0.0.1:80", "0 b/weight-100 100: 10.0.0.2:80",
                            "0 c/weight-100 100: 10.0.0.3:80"));
  }
}

TEST(EndpointsTest, AZoneOfWhichNoneServesIsNoZone) {
  ServiceInstance near = Instance(1, 100, "a");
  near.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  EXPECT_THAT(Text(Build({near, Instance(2, 100, "b")}, "a", true)),
              ElementsAre("0 b/weight-100 100: 10.0.0.2:80"));
}

TEST(EndpointsTest, SixtyFourWeightsAreExactAndMoreShareSteps) {
  std::vector<ServiceInstance> instances;
  for (int i = 1; i <= 64; ++i) instances.push_back(Instance(i, 1000 + i));
  EXPECT_EQ(Build(instances).endpoints_size(), 64);
  instances.push_back(Instance(65, 2000));
  const ClusterLoadAssignment assignment = Build(instances);
  ExpectAcceptable(assignment);
  // 1,001 to 1,024, 1,024 to 1,064, and 2,000.
  EXPECT_EQ(assignment.endpoints_size(), 3);
}

TEST(EndpointsTest, TenThousandWeightsAreSixtyFourLocalities) {
  std::vector<ServiceInstance> instances;
  uint64_t sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const uint32_t weight = 1 + i * 6;
    sum += weight;
    instances.push_back(Instance(i, weight, i % 2 == 0 ? "a" : "b"));
  }
  const ClusterLoadAssignment assignment = Build(instances);
  ExpectAcceptable(assignment);
  EXPECT_LE(assignment.endpoints_size(), 128);
  uint64_t told = 0;
  int endpoints = 0;
  for (const LocalityLbEndpoints& locality : assignment.endpoints()) {
    told += locality.load_balancing_weight().value();
    endpoints += locality.lb_endpoints_size();
  }
  EXPECT_EQ(endpoints, 10000);
  EXPECT_EQ(told, sum);
}

TEST(EndpointsTest, AStepIsAFifthWideAndFixed) {
  EXPECT_EQ(WeightStep(1), 1u);
  EXPECT_EQ(WeightStep(2), 2u);
  EXPECT_EQ(WeightStep(65535), 55109u);
  std::set<uint32_t> steps;
  for (uint32_t weight = 1; weight <= 65535; ++weight) {
    const uint32_t step = WeightStep(weight);
    ASSERT_LE(step, weight);
    ASSERT_LE(weight, std::max(step * 1.2, step + 1.0)) << step;
    ASSERT_EQ(WeightStep(step), step);
    steps.insert(step);
  }
  EXPECT_LE(steps.size(), 64u);
}

TEST(EndpointsTest, WeightsAddUpToNoMoreThanGrpcAllows) {
  std::vector<ServiceInstance> instances;
  for (int i = 0; i < 70000; ++i) instances.push_back(Instance(i, 65535));
  instances.push_back(Instance(70000, 1));
  const ClusterLoadAssignment assignment = Build(instances);
  ExpectAcceptable(assignment);
  EXPECT_EQ(assignment.endpoints_size(), 2);
}

TEST(EndpointsTest, TheOrderOfInstancesDoesNotMatter) {
  EXPECT_EQ(Build({Instance(1), Instance(2, 7, "a"), Instance(3)}).SerializeAsString(),
            Build({Instance(3), Instance(1), Instance(2, 7, "a")}).SerializeAsString());
}

TEST(ServiceNameTest, WhatStandsBeforeTheFirstSlashIsTheNamespace) {
  const auto parsed = [](const std::string& name) {
    const auto selector = ParseServiceName(name);
    return selector.ok() ? absl::StrCat(selector->namespace_(), " ", selector->service())
                         : std::string(selector.status().message());
  };
  EXPECT_EQ(parsed("orders"), "default orders");
  EXPECT_EQ(parsed("orders.staging"), "default orders.staging");
  EXPECT_EQ(parsed("staging/orders"), "staging orders");
  EXPECT_EQ(parsed("default/v2/orders"), "default v2/orders");
  EXPECT_THAT(parsed(""), HasSubstr("service"));
  EXPECT_THAT(parsed("/orders"), HasSubstr("namespace"));
  EXPECT_THAT(parsed("staging/"), HasSubstr("service"));
  EXPECT_THAT(parsed("or ders"), HasSubstr("service"));
  EXPECT_THAT(parsed("*/orders"), HasSubstr("namespace"));
  EXPECT_THAT(parsed(std::string(300, 'x')), HasSubstr("service"));
}

}  // namespace
}  // namespace failback::xds
