// What Eureka's clients read: both forms, the hash, and what has changed lately.

#include "gateway/eureka/render.h"

#include <memory>
#include <string>
#include <vector>

#include "gateway/eureka/delta_log.h"
#include "gateway/markup/xml_reader.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/event.h"
#include "tests/util/instances.h"

namespace failback::eureka {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Blob BlobOf(const ServiceInstance& instance) { return Blob(CanonicalInstance(instance)); }

std::shared_ptr<const InstanceSet> SetOf(const std::vector<ServiceInstance>& instances) {
  std::vector<Blob> blobs;
  for (const auto& instance : instances) blobs.push_back(BlobOf(instance));
  auto set = std::make_shared<InstanceSet>();
  EXPECT_TRUE(set->Apply(*Event::Snapshot(1, 1, SetFlags(), std::move(blobs))).ok());
  return set;
}

google::protobuf::Value Parse(const std::string& json) {
  google::protobuf::Value value;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &value).ok()) << json;
  return value;
}

TEST(RenderTest, BothForms_SayTheSame) {
  ServiceInstance instance = MakeInstance("o1");
  instance.set_zone("eu-1");
  (*instance.mutable_metadata())["version"] = "2";
  (*instance.mutable_metadata())["no name"] = "x";
  Applications all;
  all.Add(BlobOf(instance));
  const auto json = Parse(all.Render(Form::kJson, 7));
  const auto xml = markup::ParseXml(all.Render(Form::kXml, 7));
  ASSERT_TRUE(xml.ok()) << xml.status();
  const auto& in_json = json.struct_value().fields().at("applications").struct_value().fields();
  const auto& in_xml = xml->struct_value().fields().at("applications").struct_value().fields();
  EXPECT_EQ(in_json.at("apps__hashcode").string_value(), "UP_1_");
  EXPECT_EQ(in_xml.at("apps__hashcode").string_value(), "UP_1_");
  const auto& json_app = in_json.at("application").list_value().values(0).struct_value().fields();
  const auto& xml_app = in_xml.at("application").struct_value().fields();
  EXPECT_EQ(json_app.at("name").string_value(), "ORDERS");
  EXPECT_EQ(xml_app.at("name").string_value(), "ORDERS");
  const auto& json_instance =
      json_app.at("instance").list_value().values(0).struct_value().fields();
  const auto& xml_instance = xml_app.at("instance").struct_value().fields();
  for (const char* field : {"instanceId", "hostName", "ipAddr", "status", "vipAddress"}) {
    EXPECT_EQ(json_instance.at(field).string_value(), xml_instance.at(field).string_value());
  }
  EXPECT_EQ(json_instance.at("port").struct_value().fields().at("$").number_value(), 8080);
  EXPECT_EQ(xml_instance.at("port").struct_value().fields().at("$").string_value(), "8080");
  EXPECT_EQ(json_instance.at("metadata").struct_value().fields().at("zone").string_value(), "eu-1");
  EXPECT_EQ(json_instance.at("metadata").struct_value().fields_size(), 3);
  EXPECT_EQ(xml_instance.at("metadata").struct_value().fields_size(), 2)
      << "not every key is the name of an element";
}

TEST(RenderTest, TheHashCountsStatuses) {
  ServiceInstance down = MakeInstance("d");
  down.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  Applications all;
  EXPECT_EQ(HashOf(all.counts()), "");
  all.Add(BlobOf(MakeInstance("a")));
  all.Add(BlobOf(down));
  all.Add(BlobOf(MakeInstance("b")));
  EXPECT_EQ(HashOf(all.counts()), "DOWN_1_UP_2_");
}

TEST(RenderTest, TheFormIsThatOfAccept) {
  EXPECT_EQ(FormOf(""), Form::kXml);
  EXPECT_EQ(FormOf("*/*"), Form::kXml);
  EXPECT_EQ(FormOf("application/json"), Form::kJson);
  EXPECT_EQ(FormOf("application/json, application/*+json"), Form::kJson);
  EXPECT_EQ(FormOf("application/xml, application/json"), Form::kXml);
}

class DeltaLogTest : public ::testing::Test {
 protected:
  void Update(const catalog::NamespaceView::Services& services) { log_.Update(services, now_); }
  std::vector<std::string> Changes() {
    std::vector<std::string> changes;
    for (const auto& change : log_.changes()) {
      changes.push_back(std::string(ActionName(change.action)) + " " +
                        ParseInstance(change.instance).key().instance_id());
    }
    return changes;
  }
  absl::Time now_ = absl::FromUnixSeconds(1000);
  DeltaLog log_;
};

TEST_F(DeltaLogTest, ItBeginsWithAll_AndThenHasWhatDiffers) {
  Update({{"orders", 1, SetOf({MakeInstance("a"), MakeInstance("b")})}});
  EXPECT_THAT(Changes(), ElementsAre("ADDED a", "ADDED b"));
  now_ += absl::Minutes(4);
  Update({{"orders", 2, SetOf({MakeInstance("a", 9), MakeInstance("c")})}});
  EXPECT_THAT(Changes(), ElementsAre("DELETED b", "MODIFIED a", "ADDED c"));
  now_ += absl::Minutes(2);
  Update({});
  EXPECT_THAT(Changes(),
              ElementsAre("DELETED b", "MODIFIED a", "ADDED c", "DELETED a", "DELETED c"));
  now_ += absl::Minutes(2);
  Update({});
  EXPECT_THAT(Changes(), ElementsAre("DELETED a", "DELETED c"));
}

TEST_F(DeltaLogTest, NoChange_IsNoNewVersion) {
  const auto orders = SetOf({MakeInstance("a")});
  Update({{"orders", 1, orders}});
  const uint64_t version = log_.version();
  Update({{"orders", 1, orders}});
  EXPECT_EQ(log_.version(), version);
}

TEST_F(DeltaLogTest, BeyondItsBound_ThereIsNoDelta_UntilItIsWholeAgain) {
  log_ = DeltaLog(2);
  Update({{"orders", 1, SetOf({MakeInstance("a"), MakeInstance("b"), MakeInstance("c")})}});
  EXPECT_TRUE(log_.too_many());
  now_ += absl::Minutes(4);
  Update({{"orders", 1, SetOf({MakeInstance("a"), MakeInstance("b"), MakeInstance("c")})}});
  EXPECT_FALSE(log_.too_many());
  EXPECT_THAT(Changes(), IsEmpty());
}

}  // namespace
}  // namespace failback::eureka
