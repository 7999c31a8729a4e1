// What Consul's clients read, as JSON.

#include "gateway/consul/render.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "tests/util/instances.h"

namespace failback::consul {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

InstanceSet SetOf(const std::vector<ServiceInstance>& instances) {
  std::vector<Blob> blobs;
  for (const auto& instance : instances) blobs.emplace_back(CanonicalInstance(instance));
  InstanceSet set;
  EXPECT_TRUE(set.Apply(*Event::Snapshot(1, 1, SetFlags(), std::move(blobs))).ok());
  return set;
}

google::protobuf::Value Parse(const std::string& json) {
  google::protobuf::Value value;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &value).ok()) << json;
  return value;
}

ServiceInstance Tagged(const std::string& id, const std::string& tags) {
  ServiceInstance instance = MakeInstance(id);
  if (!tags.empty()) (*instance.mutable_metadata())["tags"] = tags;
  return instance;
}

TEST(RenderTest, HealthHasNodeServiceAndChecks) {
  ServiceInstance instance = Tagged("o1", "a,b");
  instance.set_zone("eu-1");
  (*instance.mutable_metadata())["version"] = "2\"";
  const std::string json = HealthOfService(SetOf({instance}), {"eu"});
  const auto list = Parse(json).list_value();
  ASSERT_EQ(list.values_size(), 1);
  const auto& entry = list.values(0).struct_value().fields();
  const auto& node = entry.at("Node").struct_value().fields();
  EXPECT_EQ(node.at("Node").string_value(), "10.0.0.1");
  EXPECT_EQ(node.at("Datacenter").string_value(), "eu");
  const auto& service = entry.at("Service").struct_value().fields();
  EXPECT_EQ(service.at("ID").string_value(), "o1");
  EXPECT_EQ(service.at("Service").string_value(), "orders");
  EXPECT_EQ(service.at("Port").number_value(), 8080);
  EXPECT_EQ(service.at("Tags").list_value().values_size(), 2);
  EXPECT_EQ(service.at("Meta").struct_value().fields().at("version").string_value(), "2\"");
  const auto& check = entry.at("Checks").list_value().values(0).struct_value().fields();
  EXPECT_EQ(check.at("CheckID").string_value(), "service:o1");
  EXPECT_EQ(check.at("Status").string_value(), "passing");
  EXPECT_EQ(check.at("ServiceName").string_value(), "orders");
}

TEST(RenderTest, TheZoneIsInTheMetaOfTheNode_InEveryCall) {
  ServiceInstance instance = MakeInstance("o1");
  instance.set_zone("eu-1");
  const InstanceSet set = SetOf({instance});
  Shown shown = {"eu"};
  EXPECT_THAT(HealthOfService(set, shown), HasSubstr(R"("Meta":{"zone":"eu-1"})"));
  EXPECT_THAT(CatalogOfService(set, shown), HasSubstr(R"("NodeMeta":{"zone":"eu-1"})"));
  EXPECT_THAT(Nodes({&set}, "eu"), HasSubstr(R"("Meta":{"zone":"eu-1"})"));
  shown.node = "10.0.0.1";
  EXPECT_THAT(ServicesOfNode({&set}, shown), HasSubstr(R"("Meta":{"zone":"eu-1"})"));
}

TEST(RenderTest, MaintenanceIsACheckOfItsOwn_AndTheOtherSaysHowTheServiceIs) {
  ServiceInstance own = MakeInstance("own");
  SetStatus(CheckStatus::kWarning, &own);
  SetMaintenance(CheckStatus::kWarning, &own);
  ServiceInstance marked = MakeInstance("marked");
  marked.mutable_offline()->set_reason("r");
  const InstanceSet set = SetOf({own, marked});
  const auto ids = [&](CheckStatus wanted) {
    std::vector<std::string> ids;
    const std::string json =
        ChecksOf({&set}, {"eu"}, [&](CheckStatus status) { return status == wanted; });
    const google::protobuf::Value checks = Parse(json);
    for (const auto& check : checks.list_value().values()) {
      ids.push_back(check.struct_value().fields().at("CheckID").string_value());
    }
    return ids;
  };
  EXPECT_THAT(ids(CheckStatus::kCritical),
              ElementsAre("_service_maintenance:marked", "_service_maintenance:own"));
  EXPECT_THAT(ids(CheckStatus::kWarning), ElementsAre("service:own"));
  EXPECT_THAT(ids(CheckStatus::kPassing), ElementsAre("service:marked"));
  EXPECT_EQ(HealthOfService(set, {"eu", {}, true}), "[]") << "neither is passing as a whole";
}

TEST(RenderTest, CatalogAndHealth_HaveTheSameOrder) {
  const InstanceSet set = SetOf({Tagged("b", ""), Tagged("a", ""), Tagged("c", "")});
  const auto health = Parse(HealthOfService(set, {"eu"})).list_value();
  const auto catalog = Parse(CatalogOfService(set, {"eu"})).list_value();
  ASSERT_EQ(health.values_size(), 3);
  ASSERT_EQ(catalog.values_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(health.values(i)
                  .struct_value()
                  .fields()
                  .at("Service")
                  .struct_value()
                  .fields()
                  .at("ID")
                  .string_value(),
              catalog.values(i).struct_value().fields().at("ServiceID").string_value());
  }
}

TEST(RenderTest, TagsAndPassing_LeaveOthersOut) {
  ServiceInstance sick = Tagged("sick", "a");
  sick.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  ServiceInstance marked = Tagged("marked", "a");
  marked.mutable_offline()->set_reason("r");
  const InstanceSet set = SetOf({Tagged("good", "a,b"), Tagged("other", "b"), sick, marked});
  const auto count = [&](const Shown& shown) {
    return Parse(HealthOfService(set, shown)).list_value().values_size();
  };
  EXPECT_EQ(count({"eu"}), 4);
  EXPECT_EQ(count({"eu", {"a"}}), 3);
  EXPECT_EQ(count({"eu", {"a", "b"}}), 1);
  EXPECT_EQ(count({"eu", {"a"}, true}), 1);
  const std::string checks =
      ChecksOf({&set}, {"eu"}, [](CheckStatus status) { return status == CheckStatus::kCritical; });
  EXPECT_THAT(checks, HasSubstr("_service_maintenance:marked"));
  EXPECT_THAT(checks, HasSubstr("service:sick"));
  EXPECT_THAT(checks, Not(HasSubstr("service:good")));
}

TEST(RenderTest, NodesAreAddresses) {
  ServiceInstance far = Tagged("far", "");
  far.set_address("10.0.0.2");
  const InstanceSet orders = SetOf({Tagged("o1", ""), far});
  const InstanceSet users = SetOf({MakeInstance("u1", 1, "users")});
  EXPECT_EQ(Parse(Nodes({&orders, &users}, "eu")).list_value().values_size(), 2);
  Shown shown = {"eu"};
  shown.node = "10.0.0.1";
  const auto services = Parse(ServicesOfNode({&orders, &users}, shown));
  EXPECT_EQ(services.struct_value().fields().at("Services").struct_value().fields_size(), 2);
  shown.node = "10.9.9.9";
  EXPECT_EQ(ServicesOfNode({&orders, &users}, shown), "null");
}

TEST(RenderTest, ServicesHaveTheTagsOfAllInstances) {
  EXPECT_EQ(ServicesWithTags({{"orders", TagsOf(SetOf({Tagged("a", "x,y"), Tagged("b", "z,x")}))},
                              {"users", {}}}),
            R"({"orders":["x","y","z"],"users":[]})");
}

}  // namespace
}  // namespace failback::consul
