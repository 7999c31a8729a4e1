// The names of the zone: the escape, and what each name means.

#include "gateway/dns/names.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/dns/dns_messages.h"

namespace failback::dns {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;
using Kind = Meaning::Kind;

TEST(LabelTest, EachNameHasOneLabel) {
  const std::pair<const char*, const char*> kLabels[] = {
      {"orders", "orders"},          {"orders-v2", "orders-v2"},
      {"v2/orders", "v2--2forders"}, {"a.b", "a--2eb"},
      {"Orders", "--4frders"},       {"a--b", "a--2d-b"},
      {"a-.b", "a--2d--2eb"},        {"a_b", "a--5fb"},
      {"a-B", "a--2d--42"},          {"v2/Orders", "v2--2f--4frders"},
      {"a---b", "a--2d--2d-b"}};
  for (const auto& [name, label] : kLabels) {
    EXPECT_THAT(EncodeLabel(name), Optional(std::string(label)));
    EXPECT_THAT(DecodeLabel(label), Optional(std::string(name)));
  }
}

TEST(LabelTest, AllNamesOfFewCharacters_ComeBack) {
  const std::string characters = "a0-./_Z";
  const auto check = [](const std::string& name) {
    const auto label = EncodeLabel(name);
    ASSERT_TRUE(label.has_value()) << name;
    EXPECT_THAT(DecodeLabel(*label), Optional(name)) << *label;
    EXPECT_THAT(*label, ::testing::MatchesRegex("[a-z0-9-]*"));
  };
  for (const char a : characters) {
    for (const char b : characters) {
      for (const char c : characters) {
        for (const char d : characters) check({a, b, c, d});
      }
    }
  }
}

TEST(LabelTest, OtherSpellingsOfAName_AreNone) {
  for (const char* const label :
       {"", "--61", "--2", "--", "a--", "--zz", "a--2Fb", "-a", "a-", "a_b", "a--b", "A"}) {
    EXPECT_EQ(DecodeLabel(label), std::nullopt) << label;
  }
}

TEST(LabelTest, ANameThatIsTooLong_HasNone) {
  EXPECT_TRUE(EncodeLabel(std::string(63, 'a')).has_value());
  EXPECT_FALSE(EncodeLabel(std::string(64, 'a')).has_value());
  EXPECT_FALSE(EncodeLabel(std::string(16, '.')).has_value());
  EXPECT_FALSE(EncodeLabel(std::string(1 << 20, 'a')).has_value());
}

class DomainTest : public ::testing::Test {
 protected:
  Meaning Of(const std::string& name) { return domain_.MeaningOf(WireName(name)); }
  // "service orders in default", or the number of the kind.
  std::string Service(const std::string& name) {
    const Meaning meaning = Of(name);
    if (meaning.kind != Kind::kService && meaning.kind != Kind::kServiceSrv) {
      return absl::StrCat(static_cast<int>(meaning.kind));
    }
    return absl::StrCat(meaning.kind == Kind::kServiceSrv ? "srv " : "",
                        meaning.tag.empty() ? "" : meaning.tag + " of ", meaning.service, " in ",
                        meaning.name_space);
  }

  const Domain domain_ = *Domain::Parse("failback");
};

TEST_F(DomainTest, Services) {
  EXPECT_EQ(Service("orders.service.failback"), "orders in default");
  EXPECT_EQ(Service("ORDERS.Service.FailBack"), "orders in default");
  EXPECT_EQ(Service("--4frders.service.failback"), "Orders in default");
  EXPECT_EQ(Service("--4FRDERS.service.failback"), "Orders in default");
  EXPECT_EQ(Service("v2--2forders.service.staging.failback"), "v2/orders in staging");
  EXPECT_EQ(Service("orders.service.eu--2ewest.failback"), "orders in eu.west");
  EXPECT_EQ(Service("canary.orders.service.failback"), "canary of orders in default");
  EXPECT_EQ(Service("canary.orders.service.staging.failback"), "canary of orders in staging");
  EXPECT_EQ(Service("_orders._tcp.service.failback"), "srv orders in default");
  EXPECT_EQ(Service("_orders._tcp.service.staging.failback"), "srv orders in staging");
  EXPECT_EQ(Service("service.service.failback"), "service in default");
}

TEST_F(DomainTest, OtherNames) {
  EXPECT_EQ(Of("failback").kind, Kind::kApex);
  EXPECT_EQ(Of("ns.failback").kind, Kind::kNameServer);
  for (const char* const name : {"service.failback", "staging.failback", "service.staging.failback",
                                 "_tcp.service.failback", "addr.failback"}) {
    EXPECT_EQ(Of(name).kind, Kind::kEmpty) << name;
  }
  for (const char* const name :
       {"a.b.failback", "a.b.orders.service.failback", "_orders._udp.service.failback",
        "_orders.service.failback", "x._orders._tcp.service.failback", "-.failback",
        "a--61.service.failback", "0a00000.addr.failback", "zz000007.addr.failback",
        "x.0a000007.addr.failback", "a.b.c.d.e.failback", "orders.service.-x.failback"}) {
    EXPECT_EQ(Of(name).kind, Kind::kUnknown) << name;
  }
  for (const char* const name : {"", "com", "failback.com", "xfailback", "orders.service"}) {
    EXPECT_EQ(Of(name).kind, Kind::kOutside) << name;
  }
}

TEST_F(DomainTest, TheEndOfALabel_IsNotTheDomain) {
  // One label of ten bytes, the last nine of which look like "\010failback".
  EXPECT_EQ(domain_
                .MeaningOf(std::string("\x0bx\x08"
                                       "failback\0",
                                       12))
                .kind,
            Kind::kOutside);
}

TEST_F(DomainTest, Addresses) {
  EXPECT_EQ(Of("0a000007.addr.failback").address, std::string("\x0a\0\0\x07", 4));
  EXPECT_EQ(Of("0A000007.ADDR.failback").kind, Kind::kAddress);
  EXPECT_EQ(Of("20010db8000000000000000000000001.addr.failback").address.size(), 16u);
}

TEST(DomainParseTest, DomainsOfSeveralLabels) {
  const auto domain = Domain::Parse("Services.Example.COM.");
  ASSERT_TRUE(domain.ok());
  EXPECT_EQ(domain->text(), "services.example.com.");
  EXPECT_EQ(domain->MeaningOf(WireName("orders.service.services.example.com")).service, "orders");
  EXPECT_EQ(domain->MeaningOf(WireName("orders.service.example.com")).kind, Kind::kOutside);
}

TEST(DomainParseTest, WhatIsNoDomain_IsRefusedByName) {
  for (const auto& [text, why] :
       {std::pair<std::string, std::string>{"", "it is empty"},
        {".", "it is empty"},
        {"a..b", "a label is empty"},
        {"a b", "allowed are letters, digits"},
        {std::string(64, 'a'), "more than 63 characters"},
        {std::string(32, 'a') + "." + std::string(32, 'b'), "a domain has at most 62 characters"},
        {std::string(300, 'a'), "longer than 253 characters"}}) {
    const auto domain = Domain::Parse(text);
    ASSERT_FALSE(domain.ok()) << text;
    EXPECT_THAT(std::string(domain.status().message()), HasSubstr(why));
  }
}

TEST(ToTextTest, WhatIsNotPrintable_IsEscaped) {
  EXPECT_EQ(ToText(WireName("Orders.failback")), "Orders.failback.");
  EXPECT_EQ(ToText(std::string("\4a.\0b\0", 6)), "a\\.\\000b.");
  EXPECT_EQ(ToText(std::string("\0", 1)), ".");
}

}  // namespace
}  // namespace failback::dns
