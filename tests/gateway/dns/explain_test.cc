// What people are shown about a name.

#include "gateway/dns/explain.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/instances.h"

namespace failback::dns {
namespace {

using registry::v1::ServiceInstance;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> RecordsOf(const Explanation& explained) {
  std::vector<std::string> lines;
  for (const auto& record : explained.records) {
    lines.push_back(absl::StrCat(record.type, " ", record.data));
  }
  return lines;
}

std::vector<std::string> LeftOutOf(const Explanation& explained) {
  std::vector<std::string> lines;
  for (const auto& left : explained.left_out) {
    lines.push_back(absl::StrCat(left.id, " ", left.endpoint, " ", left.why));
  }
  return lines;
}

class ExplainTest : public ::testing::Test {
 protected:
  Explanation Of(const std::string& name, const std::vector<ServiceInstance>& instances = {}) {
    return Explain(domain_, name, instances, options_);
  }

  const Domain domain_ = *Domain::Parse("failback");
  RecordOptions options_;
};

TEST_F(ExplainTest, ReasonsOfThoseLeftOut) {
  ServiceInstance same = MakeInstance("b", 8080);
  ServiceInstance draining = MakeInstance("c", 8081);
  draining.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  ServiceInstance ipv6 = MakeInstance("d", 8082);
  ipv6.set_address("2001:db8::1");
  ipv6.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  const Explanation explained =
      Of("orders.service.failback", {MakeInstance("a", 8080), same, draining, ipv6});
  EXPECT_EQ(explained.rcode, "NOERROR");
  EXPECT_EQ(explained.reason, "service orders of namespace default");
  EXPECT_THAT(RecordsOf(explained),
              ElementsAre("A 10.0.0.1", "SRV 0 100 8080 0a000001.addr.failback."));
  EXPECT_THAT(LeftOutOf(explained),
              ElementsAre("b 10.0.0.1:8080 another instance has the same address and port",
                          "c 10.0.0.1:8081 draining", "d [2001:db8::1]:8082 unhealthy"));
}

TEST_F(ExplainTest, WhenNoneIsWell) {
  ServiceInstance unwell = MakeInstance("a", 8080);
  unwell.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  const Explanation all = Of("orders.service.failback", {unwell});
  EXPECT_EQ(all.rcode, "NOERROR");
  EXPECT_THAT(all.reason, HasSubstr("none is to get work, so all are given"));
  EXPECT_THAT(LeftOutOf(all), IsEmpty());
  options_.unhealthy_if_no_others = false;
  const Explanation none = Of("orders.service.failback", {unwell});
  EXPECT_EQ(none.rcode, "NODATA");
  EXPECT_THAT(LeftOutOf(none), ElementsAre("a 10.0.0.1:8080 unhealthy"));
}

TEST_F(ExplainTest, OtherNames) {
  const std::pair<const char*, const char*> kNames[] = {{"example.com", "REFUSED"},
                                                        {"not a name", "REFUSED"},
                                                        {"a.b.failback", "NXDOMAIN"},
                                                        {"service.failback", "NODATA"},
                                                        {"failback", "NOERROR"},
                                                        {"ns.failback.", "NOERROR"},
                                                        {"orders.service.failback", "NXDOMAIN"}};
  for (const auto& [name, rcode] : kNames) EXPECT_EQ(Of(name).rcode, rcode) << name;
  EXPECT_THAT(RecordsOf(Of("0a000007.addr.failback")), ElementsAre("A 10.0.0.7"));
}

TEST_F(ExplainTest, Tags) {
  ServiceInstance tagged = MakeInstance("a", 8080);
  (*tagged.mutable_metadata())["tags"] = "canary";
  const Explanation explained =
      Of("canary.orders.service.failback", {tagged, MakeInstance("b", 8081)});
  EXPECT_EQ(explained.reason, "service orders of namespace default, instances with the tag canary");
  EXPECT_THAT(RecordsOf(explained),
              ElementsAre("A 10.0.0.1", "SRV 0 100 8080 0a000001.addr.failback."));
  EXPECT_THAT(LeftOutOf(explained), ElementsAre(HasSubstr("b 10.0.0.1:8081 without the tag")));
}

}  // namespace
}  // namespace failback::dns
