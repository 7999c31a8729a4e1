// What people are shown about a name.

#include "gateway/dns/explain.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/blob.h"
#include "registry/model/canonical.h"
#include "tests/gateway/dns/dns_messages.h"
#include "tests/util/instances.h"

namespace failback::dns {
namespace {

using registry::v1::ServiceInstance;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = Known::State;

std::vector<std::string> RecordsOf(const Explanation& explained) {
  std::vector<std::string> lines;
  for (const auto& record : explained.records) {
    lines.push_back(absl::StrCat(record.type, " ", record.data));
  }
  return lines;
}

// "A 100: 30 75 100"
std::vector<std::string> AnswersOf(const Explanation& explained) {
  std::vector<std::string> lines;
  for (const auto& answer : explained.answers) {
    lines.push_back(absl::StrCat(answer.type, " ", answer.records, ": ", answer.plain_udp, " ",
                                 answer.udp, " ", answer.tcp));
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
  Explanation Of(const std::string& name, const ServiceTable::Found& found) {
    return Explain(zone_, options_, name, MeaningOfText(zone_.domain, name), found,
                   not_registered_);
  }
  // The service has these.
  Explanation Of(const std::string& name, const std::vector<ServiceInstance>& instances) {
    ServiceTable::Found found;
    found.records = std::make_shared<const ServiceRecords>(SetOf(instances), options_);
    found.known.state = State::kPresent;
    found.known.records = found.records.get();
    return Of(name, found);
  }
  Explanation Of(const std::string& name, State state) {
    ServiceTable::Found found;
    found.known.state = state;
    return Of(name, found);
  }

  Zone zone_{*Domain::Parse("failback")};
  RecordOptions options_;
  std::vector<NotRegistered> not_registered_;
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
  EXPECT_THAT(AnswersOf(explained),
              ElementsAre("A 1: 1 1 1", "AAAA 0: 0 0 0", "SRV 1: 1 1 1", "TXT 1: 1 1 1"));
  EXPECT_THAT(LeftOutOf(explained),
              ElementsAre("b 10.0.0.1:8080 another instance has the same address and port",
                          "c 10.0.0.1:8081 draining", "d [2001:db8::1]:8082 unhealthy"));
  EXPECT_EQ(explained.total_left_out, 3);
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

TEST_F(ExplainTest, WhatIsCarriedHere_AndNotRegistered) {
  const std::string name = "orders.service.failback";
  for (const char* const id : {"a", "b"}) {
    const ServiceInstance instance = MakeInstance(id, 8080);
    not_registered_.push_back(
        {CanonicalKey(instance.key()), Blob(CanonicalInstance(instance)), "parked"});
  }
  // An update of `a` that is not acknowledged is no reason: it has a record.
  const Explanation some = Of(name, {MakeInstance("a", 8080)});
  EXPECT_THAT(LeftOutOf(some), ElementsAre("b 10.0.0.1:8080 parked"));
  EXPECT_EQ(some.total_left_out, 1);
  EXPECT_THAT(LeftOutOf(Of(name, State::kAbsent)),
              ElementsAre("a 10.0.0.1:8080 parked", "b 10.0.0.1:8080 parked"));
  EXPECT_THAT(LeftOutOf(Of(name, State::kNothing)), SizeIs(2));
  EXPECT_THAT(LeftOutOf(Of(name, State::kDenied)), IsEmpty()) << "it may not be read";
  not_registered_.resize(kMaxExplained + 1, not_registered_.back());
  EXPECT_THAT(Of(name, State::kAbsent).left_out, SizeIs(kMaxExplained));
  EXPECT_EQ(Of(name, State::kAbsent).total_left_out, kMaxExplained + 1);
}

TEST_F(ExplainTest, AnotherHasTheKeyOfWhatIsCarriedHere) {
  const ServiceInstance mine = MakeInstance("a", 8080);
  not_registered_.push_back({CanonicalKey(mine.key()), Blob(CanonicalInstance(mine)),
                             "superseded: another holds its key"});
  ServiceInstance theirs = mine;
  theirs.set_address("10.0.0.9");
  const Explanation explained = Of("orders.service.failback", {theirs});
  EXPECT_THAT(RecordsOf(explained),
              ElementsAre("A 10.0.0.9", "SRV 0 100 8080 0a000009.addr.failback."));
  EXPECT_THAT(LeftOutOf(explained),
              ElementsAre("a 10.0.0.1:8080 superseded: another holds its key"));
  EXPECT_EQ(explained.total_left_out, 1);
}

TEST_F(ExplainTest, WhatIsAcknowledgedHere_AndNotTold) {
  const std::string name = "orders.service.failback";
  const ServiceInstance mine = MakeInstance("a", 8080);
  not_registered_.push_back(
      {CanonicalKey(mine.key()), Blob(CanonicalInstance(mine)), "gone", /*acknowledged=*/true});
  EXPECT_THAT(LeftOutOf(Of(name, {mine})), IsEmpty());
  EXPECT_THAT(LeftOutOf(Of(name, {MakeInstance("b", 8081)})), ElementsAre("a 10.0.0.1:8080 gone"));
  EXPECT_THAT(LeftOutOf(Of(name, State::kAbsent)), ElementsAre("a 10.0.0.1:8080 gone"));
  EXPECT_THAT(LeftOutOf(Of(name, State::kNothing)), IsEmpty()) << "nothing is told of any";
}

TEST_F(ExplainTest, NamesThatAreAboutNoService) {
  zone_.addresses = {{127, 0, 0, 1}};
  const std::pair<const char*, const char*> kNames[] = {
      {"example.com", "REFUSED"},     {"not a name", "REFUSED"}, {"a.b.failback", "NXDOMAIN"},
      {"service.failback", "NODATA"}, {"failback", "NOERROR"},   {"ns.failback.", "NOERROR"}};
  for (const auto& [name, rcode] : kNames) {
    EXPECT_EQ(Of(name, State::kNothing).rcode, rcode) << name;
  }
  EXPECT_THAT(Of("orders", State::kNothing).reason,
              HasSubstr("a service is [TAG.]SERVICE.service[.NAMESPACE].failback."));
  EXPECT_THAT(RecordsOf(Of("0a000007.addr.failback", State::kNothing)), ElementsAre("A 10.0.0.7"));
  EXPECT_THAT(RecordsOf(Of("ns.failback", State::kNothing)), ElementsAre("A 127.0.0.1"));
  EXPECT_THAT(AnswersOf(Of("failback", State::kNothing)),
              ElementsAre("SOA 1: 1 1 1", "NS 1: 1 1 1"));
}

TEST_F(ExplainTest, WhatIsKnownOfTheService) {
  const std::string name = "orders.service.failback";
  const Explanation nothing = Of(name, State::kNothing);
  EXPECT_EQ(nothing.rcode, "SERVFAIL");
  EXPECT_THAT(nothing.reason, HasSubstr("nothing is known of it"));
  const Explanation denied = Of(name, State::kDenied);
  EXPECT_EQ(denied.rcode, "REFUSED");
  EXPECT_THAT(denied.reason, HasSubstr("may not read it"));
  const Explanation absent = Of(name, State::kAbsent);
  EXPECT_EQ(absent.rcode, "NXDOMAIN");
  EXPECT_THAT(absent.reason, HasSubstr("it has no instance, and none was seen"));
  const Explanation empty = Of(name, std::vector<ServiceInstance>());
  EXPECT_EQ(empty.rcode, "NODATA");
  EXPECT_THAT(empty.reason, HasSubstr("its last instance has left"));
  ServiceTable::Found refused;
  refused.too_many_names = true;
  EXPECT_THAT(Of(name, refused).reason, HasSubstr("more new names a second"));
  ServiceTable::Found stale;
  stale.known.state = State::kAbsent;
  stale.known.stale = true;
  EXPECT_TRUE(Of(name, stale).stale);
  stale.known.state = State::kDenied;
  EXPECT_FALSE(Of(name, stale).stale) << "no outage";
}

TEST_F(ExplainTest, Zones) {
  options_.zone = "eu-1";
  ServiceInstance near = MakeInstance("a", 8080);
  near.set_zone("eu-1");
  const Explanation explained = Of("orders.service.failback", {near, MakeInstance("b", 8081)});
  EXPECT_THAT(explained.reason, HasSubstr("zone eu-1 first, 1 of other zones with priority 1"));
}

TEST_F(ExplainTest, Tags) {
  ServiceInstance tagged = MakeInstance("a", 8080);
  (*tagged.mutable_metadata())["tags"] = "canary";
  // Its last tag is one too many.
  ServiceInstance many = MakeInstance("c", 8082);
  std::string& tags = (*many.mutable_metadata())["tags"];
  for (size_t i = 0; i < kMaxTagsOfInstance; ++i) absl::StrAppend(&tags, "t", i, ",");
  tags += "canary";
  ServiceInstance same = tagged;
  same.mutable_key()->set_instance_id("d");
  const Explanation explained =
      Of("canary.orders.service.failback", {tagged, MakeInstance("b", 8081), many, same});
  EXPECT_EQ(explained.reason,
            "service orders of namespace default, its instances with the tag canary");
  EXPECT_THAT(RecordsOf(explained),
              ElementsAre("A 10.0.0.1", "SRV 0 100 8080 0a000001.addr.failback."));
  EXPECT_THAT(
      LeftOutOf(explained),
      ElementsAre(
          "b 10.0.0.1:8081 has no tag canary",
          "c 10.0.0.1:8082 has the tag canary beyond its first 16, which are all that count",
          "d 10.0.0.1:8080 another instance has the same address and port"));
}

TEST_F(ExplainTest, TagsOfAServiceBeyondTheMost) {
  std::vector<ServiceInstance> instances;
  for (size_t i = 0; i <= kMaxTagsOfService / kMaxTagsOfInstance; ++i) {
    // The order of the ids is that of the set.
    instances.push_back(MakeInstance(absl::StrCat(100 + i), static_cast<uint32_t>(8000 + i)));
    std::string& tags = (*instances.back().mutable_metadata())["tags"];
    for (size_t tag = 0; tag < kMaxTagsOfInstance; ++tag) {
      absl::StrAppend(&tags, "t", i * kMaxTagsOfInstance + tag, ",");
    }
  }
  const Explanation last = Of("t255.orders.service.failback", instances);
  EXPECT_EQ(last.rcode, "NOERROR");
  const Explanation beyond = Of("t256.orders.service.failback", instances);
  EXPECT_EQ(beyond.rcode, "NODATA");
  EXPECT_EQ(beyond.left_out.back().why, "its service has 256 other tags, which are all that count");
}

TEST_F(ExplainTest, WhatDoesNotFitIsCounted_AndListsAreBounded) {
  std::vector<ServiceInstance> instances;
  for (int i = 0; i < 3000; ++i) {
    instances.push_back(MakeInstance(absl::StrCat(10000 + i), static_cast<uint32_t>(1 + i)));
    instances.back().set_address(absl::StrCat("10.", i / 250, ".0.", i % 250));
    if (i % 2 == 1) instances.back().set_status(registry::v1::HEALTH_STATUS_DRAINING);
  }
  const Explanation explained = Of("orders.service.failback", instances);
  ASSERT_THAT(explained.answers, SizeIs(4));
  const Explanation::Answer& a = explained.answers[0];
  EXPECT_EQ(a.records, 1500);
  // A record has 16 bytes, the header and the question 41; EDNS takes 11.
  EXPECT_EQ(a.plain_udp, (512 - 41) / 16);
  EXPECT_EQ(a.udp, (1232 - 41 - 11) / 16);
  EXPECT_EQ(a.tcp, 1500);
  EXPECT_EQ(explained.answers[3].type, "TXT");
  EXPECT_EQ(explained.answers[3].tcp, kMaxTxtRecords);
  EXPECT_THAT(explained.records, SizeIs(kMaxExplained));
  EXPECT_THAT(explained.left_out, SizeIs(kMaxExplained));
  EXPECT_EQ(explained.total_left_out, 1500);
}

}  // namespace
}  // namespace failback::dns
