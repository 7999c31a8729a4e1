// What is answered, as ldns reads it.

#include "gateway/dns/zone.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/dns/dns_messages.h"
#include "tests/util/instances.h"

namespace failback::dns {
namespace {

using registry::v1::ServiceInstance;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr int kNoError = 0;
constexpr int kServFail = 2;
constexpr int kNxDomain = 3;
constexpr int kRefused = 5;

class ZoneTest : public ::testing::Test {
 protected:
  // `count` instances 10.0.0.1, …, at ports 8001, ….
  void Have(int count) {
    std::vector<ServiceInstance> instances;
    for (int i = 1; i <= count; ++i) {
      ServiceInstance instance = MakeInstance(absl::StrFormat("orders-%05d", i), 8000 + i);
      instance.set_address(absl::StrCat("10.0.", i / 256, ".", i % 256));
      instances.push_back(instance);
    }
    Have(instances);
  }
  void Have(const std::vector<ServiceInstance>& instances) {
    records_ = std::make_unique<ServiceRecords>(SetOf(instances), options_);
    known_.state = Known::State::kPresent;
    known_.records = records_.get();
  }

  Message Ask(const std::string& name, uint16_t type, const QueryShape& shape = {}) {
    const std::string bytes = QueryBytes(name, type, shape);
    Query query;
    EXPECT_EQ(ReadQuery(bytes, &query).rcode, Rcode::kNoError);
    std::vector<char> buffer(kMaxMessageBytes);
    const Reply reply = WriteReply(zone_, query, zone_.domain.MeaningOf(query.name), known_,
                                   delivery_, &shuffle_, buffer.data());
    size_ = reply.size;
    Message message = ReadMessage({buffer.data(), reply.size});
    EXPECT_TRUE(message.readable);
    EXPECT_EQ(message.rcode, static_cast<int>(reply.rcode));
    EXPECT_EQ(message.truncated, reply.truncated);
    EXPECT_FALSE(message.recursion_available);
    return message;
  }
  static QueryShape Edns(int udp_bytes) {
    QueryShape shape;
    shape.udp_bytes = udp_bytes;
    return shape;
  }

  Zone zone_{*Domain::Parse("failback")};
  RecordOptions options_;
  std::unique_ptr<ServiceRecords> records_;
  Known known_;
  Delivery delivery_{/*tcp=*/false, /*trusted=*/true, "", 1700000000};
  Shuffle shuffle_{1};
  size_t size_ = 0;
};

TEST_F(ZoneTest, A_HasAllAddresses_AndTheCaseOfTheQuestion) {
  Have(3);
  const Message message = Ask("Orders.sErvice.failback", type::kA);
  EXPECT_EQ(message.rcode, kNoError);
  EXPECT_TRUE(message.authoritative);
  EXPECT_THAT(message.question, ElementsAre("Orders.sErvice.failback. IN A"));
  EXPECT_THAT(message.answer, UnorderedElementsAre("Orders.sErvice.failback. 1 IN A 10.0.0.1",
                                                   "Orders.sErvice.failback. 1 IN A 10.0.0.2",
                                                   "Orders.sErvice.failback. 1 IN A 10.0.0.3"));
  EXPECT_FALSE(message.edns);
}

TEST_F(ZoneTest, Aaaa_HasThoseOfIpv6) {
  ServiceInstance instance = MakeInstance("orders", "a");
  instance.set_address("2001:db8::1");
  Have({instance, MakeInstance("orders", "b")});
  EXPECT_THAT(Ask("orders.service.failback", type::kAaaa).answer,
              ElementsAre("orders.service.failback. 1 IN AAAA 2001:db8::1"));
}

TEST_F(ZoneTest, Srv_HasPortWeightAndPriority_AndTheAddressesBesides) {
  options_.zone = "eu-1";
  ServiceInstance near = MakeInstance("orders", "a", 8080);
  near.set_zone("eu-1");
  near.set_weight(7);
  ServiceInstance far = MakeInstance("orders", "b", 9090);
  far.set_address("2001:db8::1");
  ServiceInstance named = MakeInstance("orders", "c", 5432);
  named.set_address("db.example.com");
  Have({near, far, named});
  for (const std::string name : {"orders.service.failback", "_orders._tcp.service.failback"}) {
    const Message message = Ask(name, type::kSrv, Edns(1232));
    EXPECT_THAT(message.answer,
                UnorderedElementsAre(
                    name + ". 1 IN SRV 0 7 8080 0a000001.addr.failback.",
                    name + ". 1 IN SRV 1 100 9090 20010db8000000000000000000000001.addr.failback.",
                    name + ". 1 IN SRV 1 100 5432 db.example.com."));
    EXPECT_THAT(message.additional,
                UnorderedElementsAre(
                    "0a000001.addr.failback. 1 IN A 10.0.0.1",
                    "20010db8000000000000000000000001.addr.failback. 1 IN AAAA 2001:db8::1"));
    EXPECT_FALSE(message.truncated);
    EXPECT_TRUE(message.edns);
  }
}

TEST_F(ZoneTest, TheTargetsOfSrv_HaveTheirAddresses) {
  known_.state = Known::State::kNothing;  // no matter
  EXPECT_THAT(Ask("0a000007.addr.failback", type::kA).answer,
              ElementsAre("0a000007.addr.failback. 1 IN A 10.0.0.7"));
  EXPECT_THAT(Ask("20010db8000000000000000000000001.addr.failback", type::kAaaa).answer,
              ElementsAre(HasSubstr("IN AAAA 2001:db8::1")));
  const Message other = Ask("0a000007.addr.failback", type::kAaaa);
  EXPECT_EQ(other.rcode, kNoError);
  EXPECT_THAT(other.answer, IsEmpty());
  EXPECT_THAT(other.authority, SizeIs(1));
}

TEST_F(ZoneTest, Txt_HasIdAndMetadata_WithinBounds) {
  ServiceInstance instance = MakeInstance("orders", "a");
  (*instance.mutable_metadata())["version"] = "2";
  (*instance.mutable_metadata())["long"] = std::string(300, 'x');
  Have({instance});
  EXPECT_THAT(Ask("orders.service.failback", type::kTxt).answer,
              ElementsAre("orders.service.failback. 1 IN TXT \"id=a\" \"version=2\""))
      << "a value that does not fit in a string is left out";
  for (int i = 0; i < 40; ++i) {
    (*instance.mutable_metadata())[absl::StrCat("k", 10 + i)] = "v";
  }
  Have({instance});
  const Message message = Ask("orders.service.failback", type::kTxt);
  EXPECT_EQ(std::count(message.answer[0].begin(), message.answer[0].end(), '"'), 2 * 17);
  Have(100);
  delivery_.tcp = true;
  EXPECT_THAT(Ask("orders.service.failback", type::kTxt).answer, SizeIs(kMaxTxtRecords));
}

TEST_F(ZoneTest, Tags_NarrowTheAnswer) {
  ServiceInstance canary = MakeInstance("orders", "a");
  (*canary.mutable_metadata())["tags"] = "canary";
  ServiceInstance other = MakeInstance("orders", "b");
  other.set_address("10.0.0.2");
  Have({canary, other});
  EXPECT_THAT(Ask("canary.orders.service.failback", type::kA).answer,
              ElementsAre("canary.orders.service.failback. 1 IN A 10.0.0.1"));
  const Message none = Ask("blue.orders.service.failback", type::kA);
  EXPECT_EQ(none.rcode, kNoError) << "the service is known";
  EXPECT_THAT(none.answer, IsEmpty());
  EXPECT_THAT(none.authority, SizeIs(1));
}

TEST_F(ZoneTest, TheApex) {
  zone_.addresses = {std::string("\x7f\0\0\1", 4)};
  EXPECT_THAT(Ask("failback", type::kSoa).answer,
              ElementsAre("failback. 1 IN SOA ns.failback. hostmaster.failback. 1700000000 3600 "
                          "600 86400 1"));
  const Message servers = Ask("failback", type::kNs);
  EXPECT_THAT(servers.answer, ElementsAre("failback. 1 IN NS ns.failback."));
  EXPECT_THAT(servers.additional, ElementsAre("ns.failback. 1 IN A 127.0.0.1"));
  EXPECT_THAT(Ask("ns.failback", type::kA).answer, ElementsAre("ns.failback. 1 IN A 127.0.0.1"));
  EXPECT_THAT(Ask("failback", type::kA).authority, ElementsAre(StartsWith("failback. 1 IN SOA")));
}

// RFC 2308.
TEST_F(ZoneTest, NegativeAnswers) {
  known_.state = Known::State::kAbsent;
  const Message absent = Ask("orders.service.failback", type::kA);
  EXPECT_EQ(absent.rcode, kNxDomain);
  EXPECT_TRUE(absent.authoritative);
  EXPECT_THAT(absent.authority, ElementsAre(StartsWith("failback. 1 IN SOA")));

  Have(0);
  for (const uint16_t type : {type::kA, type::kAaaa, type::kSrv, type::kTxt, uint16_t{15}}) {
    const Message empty = Ask("orders.service.failback", type);
    EXPECT_EQ(empty.rcode, kNoError) << "known, without instances";
    EXPECT_THAT(empty.answer, IsEmpty());
    EXPECT_THAT(empty.authority, ElementsAre(StartsWith("failback. 1 IN SOA")));
  }
  for (const char* const name : {"service.failback", "_tcp.service.failback", "eu.failback"}) {
    EXPECT_EQ(Ask(name, type::kA).rcode, kNoError) << "names below it exist";
  }
  EXPECT_EQ(Ask("a.b.failback", type::kA).rcode, kNxDomain);
  Have(1);
  EXPECT_THAT(Ask("_orders._tcp.service.failback", type::kA).authority, SizeIs(1));

  known_.state = Known::State::kNothing;
  const Message nothing = Ask("orders.service.failback", type::kA);
  EXPECT_EQ(nothing.rcode, kServFail);
  EXPECT_FALSE(nothing.authoritative);
  EXPECT_THAT(nothing.authority, IsEmpty());

  known_.state = Known::State::kDenied;
  EXPECT_EQ(Ask("orders.service.failback", type::kA).rcode, kRefused);
}

TEST_F(ZoneTest, OutsideOfTheZone_OtherClassesAndTransfers_AreRefused) {
  Have(1);
  EXPECT_EQ(Ask("example.com", type::kA).rcode, kRefused);
  EXPECT_FALSE(Ask("example.com", type::kA).authoritative);
  QueryShape chaos;
  chaos.question_class = 3;
  EXPECT_EQ(Ask("orders.service.failback", type::kTxt, chaos).rcode, kRefused);
  EXPECT_EQ(Ask("failback", type::kAxfr).rcode, kRefused);
  EXPECT_EQ(Ask("failback", type::kIxfr).rcode, kRefused);
}

// RFC 8482.
TEST_F(ZoneTest, Any_IsAnsweredWithOneSmallRecord) {
  Have(100);
  const Message message = Ask("orders.service.failback", type::kAny);
  EXPECT_THAT(message.answer, ElementsAre("orders.service.failback. 1 IN HINFO \"RFC8482\" \"\""));
  known_.state = Known::State::kAbsent;
  EXPECT_EQ(Ask("orders.service.failback", type::kAny).rcode, kNxDomain);
}

TEST_F(ZoneTest, WhileTheRegistryIsUnavailable_TheTtlIsShort) {
  zone_.ttl = 5;
  Have(1);
  EXPECT_THAT(Ask("orders.service.failback", type::kA).answer, ElementsAre(HasSubstr(" 5 IN A ")));
  known_.stale = true;
  EXPECT_THAT(Ask("orders.service.failback", type::kA).answer, ElementsAre(HasSubstr(" 1 IN A ")));
}

TEST_F(ZoneTest, OrdersAreRandom) {
  Have(8);
  std::map<std::string, int> first;
  for (int i = 0; i < 4000; ++i) ++first[Ask("orders.service.failback", type::kA).answer[0]];
  EXPECT_THAT(first, SizeIs(8));
  for (const auto& [record, times] : first) {
    EXPECT_GT(times, 400) << record;
    EXPECT_LT(times, 600) << record;
  }
}

TEST_F(ZoneTest, WhatIsShortened_SaysSo) {
  Have(40);
  const Message plain = Ask("orders.service.failback", type::kA);
  EXPECT_TRUE(plain.truncated);
  EXPECT_LE(size_, 512u);
  EXPECT_THAT(plain.answer, SizeIs((512 - 12 - 29) / 16));
  EXPECT_THAT(plain.authority, IsEmpty());

  const Message srv = Ask("orders.service.failback", type::kSrv, Edns(4096));
  EXPECT_TRUE(srv.truncated);
  EXPECT_LE(size_, 1232u) << "whatever the client takes";
  EXPECT_TRUE(srv.edns);
  EXPECT_EQ(srv.udp_bytes, 1232);

  zone_.max_udp_bytes = 8192;
  const Message whole = Ask("orders.service.failback", type::kSrv, Edns(8192));
  EXPECT_FALSE(whole.truncated);
  EXPECT_THAT(whole.answer, SizeIs(40));
  EXPECT_THAT(whole.additional, SizeIs(40));

  // Room for the SRV records, and not for their addresses.
  const Message without = Ask("orders.service.failback", type::kSrv, Edns(2000));
  EXPECT_THAT(without.answer, SizeIs(40));
  EXPECT_LT(without.additional.size(), 40u);
  EXPECT_FALSE(without.truncated) << "the answer is whole (RFC 2181, section 9)";
}

TEST_F(ZoneTest, TheApex_IsNotTruncatedByItsAddresses) {
  for (char i = 1; i < 100; ++i) zone_.addresses.push_back({127, 0, 0, i});
  const Message servers = Ask("failback", type::kNs);
  EXPECT_THAT(servers.answer, SizeIs(1));
  EXPECT_LT(servers.additional.size(), 99u);
  EXPECT_FALSE(servers.truncated);
}

TEST_F(ZoneTest, WhatIsLeftOut_IsRandom) {
  Have(200);
  std::set<std::string> seen;
  for (int i = 0; i < 200; ++i) {
    const Message message = Ask("orders.service.failback", type::kA);
    seen.insert(message.answer.begin(), message.answer.end());
  }
  EXPECT_THAT(seen, SizeIs(200));
}

TEST_F(ZoneTest, WhereNotAllFit_TheOwnZoneComesFirst) {
  options_.zone = "eu-1";
  std::vector<ServiceInstance> instances;
  for (int i = 0; i < 100; ++i) {
    instances.push_back(MakeInstance("orders", absl::StrCat(i), 8000 + i));
    instances.back().set_zone(i % 25 == 0 ? "eu-1" : "eu-2");
  }
  Have(instances);
  const Message message = Ask("orders.service.failback", type::kSrv);
  EXPECT_TRUE(message.truncated);
  EXPECT_GT(message.answer.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_THAT(message.answer[i], HasSubstr(" IN SRV 0 "));
}

TEST_F(ZoneTest, ToAnUnprovenClient_GoesTenTimesWhatItSent) {
  Have(100);
  delivery_.trusted = false;
  const QueryShape shape = Edns(1232);
  for (const uint16_t type : {type::kA, type::kSrv, type::kTxt, type::kAny}) {
    const Message message = Ask("orders.service.failback", type, shape);
    const size_t sent = QueryBytes("orders.service.failback", type, shape).size();
    EXPECT_LE(size_, kMaxAmplification * sent);
    EXPECT_EQ(message.truncated, type != type::kAny);
  }
  delivery_.trusted = true;
  Ask("orders.service.failback", type::kA, shape);
  EXPECT_GT(size_, 1000u);
}

TEST_F(ZoneTest, AThousandInstances_FitInAMessageOfTcp) {
  Have(1000);
  delivery_.tcp = true;
  const Message message = Ask("orders.service.failback", type::kSrv);
  EXPECT_FALSE(message.truncated);
  EXPECT_THAT(message.answer, SizeIs(1000));
  EXPECT_THAT(message.additional, SizeIs(1000));
  EXPECT_THAT(message.additional, Each(HasSubstr(".addr.failback. 1 IN A 10.0.")));
}

TEST_F(ZoneTest, BeyondAMessageOfTcp_ARandomPartIsGiven) {
  Have(10000);
  delivery_.tcp = true;
  const Message message = Ask("orders.service.failback", type::kA);
  EXPECT_FALSE(message.truncated) << "there is nothing larger to ask for";
  EXPECT_LE(size_, kMaxMessageBytes);
  EXPECT_GT(message.answer.size(), 4000u);
  EXPECT_THAT(std::set<std::string>(message.answer.begin(), message.answer.end()),
              SizeIs(message.answer.size()));
}

TEST_F(ZoneTest, TheCookie_IsReturned) {
  Have(1);
  delivery_.cookie = "01234567abcdefgh";
  QueryShape shape = Edns(1232);
  shape.cookie = "01234567";
  EXPECT_EQ(Ask("orders.service.failback", type::kA, shape).cookie, "01234567abcdefgh");
}

}  // namespace
}  // namespace failback::dns
