// The reader of queries and the writer of responses; ldns reads what is written.

#include "gateway/dns/message.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/dns/dns_messages.h"

namespace failback::dns {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReadQueryTest, APlainQuery_IsReadAsItCame) {
  const std::string bytes = QueryBytes("Orders.service.failback", type::kSrv);
  Query query;
  const Reading reading = ReadQuery(bytes, &query);
  EXPECT_TRUE(reading.answer);
  EXPECT_EQ(reading.rcode, Rcode::kNoError);
  EXPECT_EQ(query.id, 0x1234);
  EXPECT_EQ(query.name, WireName("Orders.service.failback"));
  EXPECT_EQ(query.type, type::kSrv);
  EXPECT_EQ(query.question_class, kClassIn);
  EXPECT_TRUE(query.recursion_desired);
  EXPECT_FALSE(query.edns);
  EXPECT_EQ(query.bytes, bytes.size());
}

TEST(ReadQueryTest, Edns_SizeAndCookieAreRead) {
  QueryShape shape;
  shape.udp_bytes = 4096;
  shape.cookie = "01234567";
  const std::string bytes = QueryBytes("x.failback", type::kA, shape);
  Query query;
  EXPECT_EQ(ReadQuery(bytes, &query).rcode, Rcode::kNoError);
  EXPECT_TRUE(query.edns);
  EXPECT_EQ(query.udp_bytes, 4096);
  EXPECT_EQ(query.cookie, "01234567");
}

TEST(ReadQueryTest, AnotherVersionOfEdns_IsBadVers) {
  QueryShape shape;
  shape.udp_bytes = 512;
  shape.edns_version = 1;
  const std::string bytes = QueryBytes("x.failback", type::kA, shape);
  Query query;
  EXPECT_EQ(ReadQuery(bytes, &query).rcode, Rcode::kBadVers);
}

TEST(ReadQueryTest, ResponsesAndScraps_AreNotAnswered) {
  QueryShape response;
  response.flags = 0x8000;
  Query query;
  EXPECT_FALSE(ReadQuery(QueryBytes("x.failback", type::kA, response), &query).answer);
  EXPECT_FALSE(ReadQuery("", &query).answer);
  EXPECT_FALSE(ReadQuery(std::string(kHeaderBytes - 1, '\0'), &query).answer);
}

TEST(ReadQueryTest, OtherOpcodes_AreNotImplemented) {
  QueryShape notify;
  notify.flags = 4 << 11;
  Query query;
  const std::string bytes = QueryBytes("x.failback", type::kA, notify);
  EXPECT_EQ(ReadQuery(bytes, &query).rcode, Rcode::kNotImp);
  EXPECT_EQ(query.opcode, 4);
}

TEST(ReadQueryTest, WithoutAQuestion_ACookieMayBeAskedFor) {
  QueryShape edns;
  edns.udp_bytes = 1232;
  edns.cookie = "12345678";
  const auto without_question = [](const QueryShape& shape) {
    std::string bytes = QueryBytes("x", type::kA, shape);
    bytes.erase(kHeaderBytes, 3 + 4);
    bytes[5] = 0;
    return bytes;
  };
  Query query;
  EXPECT_EQ(ReadQuery(without_question(edns), &query).rcode, Rcode::kNoError);
  EXPECT_EQ(query.cookie, "12345678");
  EXPECT_TRUE(query.question.empty());
  edns.cookie.clear();
  EXPECT_EQ(ReadQuery(without_question(edns), &query).rcode, Rcode::kFormErr) << "no cookie";
  edns.udp_bytes = -1;
  EXPECT_EQ(ReadQuery(without_question(edns), &query).rcode, Rcode::kFormErr) << "no EDNS";
}

TEST(ReadQueryTest, WhatIsMisshapen_IsAFormErr) {
  QueryShape edns;
  edns.udp_bytes = 512;
  edns.cookie = "12345678";
  const std::string good = QueryBytes("orders.service.failback", type::kA, edns);
  Query query;
  for (size_t size = kHeaderBytes; size < good.size(); ++size) {
    EXPECT_EQ(ReadQuery(good.substr(0, size), &query).rcode, Rcode::kFormErr) << size;
  }
  EXPECT_EQ(ReadQuery(good + "x", &query).rcode, Rcode::kFormErr) << "bytes after the last record";
  std::string pointer = good;
  pointer[kHeaderBytes] = static_cast<char>(0xc0);
  EXPECT_EQ(ReadQuery(pointer, &query).rcode, Rcode::kFormErr) << "a pointer in the question";
  std::string two = good;
  two[5] = 2;
  EXPECT_EQ(ReadQuery(two, &query).rcode, Rcode::kFormErr) << "two questions";
  std::string many = good;
  many[10] = 1;
  EXPECT_EQ(ReadQuery(many, &query).rcode, Rcode::kFormErr) << "257 further records";
  const size_t opt = good.size() - 23;
  std::string twice = good + good.substr(opt);
  twice[11] = 2;
  EXPECT_EQ(ReadQuery(twice, &query).rcode, Rcode::kFormErr) << "two OPT records";
  for (const size_t size : {1, 7, 9, 15, 41}) {
    edns.cookie = std::string(size, 'c');
    EXPECT_EQ(ReadQuery(QueryBytes("x.failback", type::kA, edns), &query).rcode, Rcode::kFormErr)
        << "a cookie of " << size;
  }
}

// It has its version in the authority section.
TEST(ReadQueryTest, Ixfr_IsRefused) {
  Query query;
  std::string transfer = QueryBytes("x.failback", type::kIxfr);
  transfer[9] = 1;
  transfer += std::string("\xc0\x0c\0\x06\0\x01\0\0\0\0\0\0", 12);
  EXPECT_EQ(ReadQuery(transfer, &query).rcode, Rcode::kRefused);
  std::string other = transfer;
  other.replace(other.size() - 16, 2, std::string("\0\x01", 2));
  EXPECT_EQ(ReadQuery(other, &query).rcode, Rcode::kFormErr) << "of another type";
}

TEST(ReadQueryTest, NamesAreBounded) {
  Query query;
  std::string longest;  // 254 bytes and the root's
  for (int i = 0; i < 127; ++i) longest += "a.";
  EXPECT_EQ(ReadQuery(QueryBytes(longest, type::kA), &query).rcode, Rcode::kNoError);
  EXPECT_EQ(query.name.size(), kMaxNameBytes);
  EXPECT_EQ(ReadQuery(QueryBytes(longest + "a", type::kA), &query).rcode, Rcode::kFormErr);
  EXPECT_EQ(ReadQuery(QueryBytes(std::string(64, 'a'), type::kA), &query).rcode, Rcode::kFormErr);
  EXPECT_EQ(ReadQuery(QueryBytes("x", type::kA) + std::string(kMaxQueryBytes, 'x'), &query).rcode,
            Rcode::kFormErr);
  EXPECT_TRUE(query.question.empty()) << "nothing of it was read";
}

TEST(WriterTest, Records_AreReadByLdns) {
  QueryShape shape;
  shape.udp_bytes = 1232;
  shape.cookie = "01234567";
  const std::string bytes = QueryBytes("Orders.failback", type::kA, shape);
  Query query;
  ASSERT_TRUE(ReadQuery(bytes, &query).answer);
  char buffer[512];
  Writer writer(buffer, sizeof(buffer));
  writer.Begin(query, Rcode::kNoError, 1400, "0123456789abcdef");
  writer.SetAuthoritative();
  writer.BeginRecord(Section::kAnswer, type::kA, 5);
  writer.OwnerAt(kHeaderBytes);
  writer.BeginData();
  writer.Put32(0x0a000007);
  EXPECT_TRUE(writer.EndRecord());
  const Message message = ReadMessage({buffer, writer.End()});
  ASSERT_TRUE(message.readable);
  EXPECT_EQ(message.id, 0x1234);
  EXPECT_TRUE(message.response);
  EXPECT_TRUE(message.authoritative);
  EXPECT_TRUE(message.recursion_desired);
  EXPECT_FALSE(message.recursion_available);
  EXPECT_FALSE(message.truncated);
  EXPECT_THAT(message.question, ElementsAre("Orders.failback. IN A"));
  EXPECT_THAT(message.answer, ElementsAre("Orders.failback. 5 IN A 10.0.0.7"));
  EXPECT_TRUE(message.edns);
  EXPECT_EQ(message.udp_bytes, 1400);
  EXPECT_EQ(message.cookie, "0123456789abcdef");
}

// RFC 3225, section 3. What else stands there may mean something one day, and is zero until then.
TEST(WriterTest, DnssecOk_IsGivenBack_AndNoOtherFlag) {
  for (const uint16_t flags : {0x0000, 0x8000, 0x7fff, 0xffff}) {
    QueryShape shape;
    shape.udp_bytes = 1232;
    shape.edns_flags = flags;
    const std::string bytes = QueryBytes("x.failback", type::kA, shape);
    Query query;
    ASSERT_EQ(ReadQuery(bytes, &query).rcode, Rcode::kNoError);
    char buffer[512];
    Writer writer(buffer, sizeof(buffer));
    writer.Begin(query, Rcode::kNoError);
    const std::string response(buffer, writer.End());
    const bool dnssec_ok = (flags & 0x8000) != 0;
    EXPECT_EQ(ReadMessage(response).dnssec_ok, dnssec_ok) << flags;
    // Before the length of the options, which is last.
    EXPECT_EQ(response.substr(response.size() - 4, 2),
              std::string({dnssec_ok ? '\x80' : '\0', '\0'}));
  }
}

TEST(WriterTest, WhatDoesNotFit_IsLeftOutWhole) {
  QueryShape shape;
  shape.udp_bytes = 1232;
  Query query;
  const std::string bytes = QueryBytes("x.failback", type::kA, shape);
  ASSERT_TRUE(ReadQuery(bytes, &query).answer);
  const size_t empty = bytes.size();  // header, question, OPT
  for (size_t room = 0; room < 40; ++room) {
    std::string buffer(empty + room, '#');
    Writer writer(buffer.data(), buffer.size());
    writer.Begin(query, Rcode::kNoError);
    size_t written = 0;
    for (int i = 0; i < 3; ++i) {
      writer.BeginRecord(Section::kAnswer, type::kA, 5);
      writer.OwnerAt(kHeaderBytes);
      writer.BeginData();
      writer.Put32(i);
      written += writer.EndRecord() ? 1 : 0;
    }
    const size_t size = writer.End();
    EXPECT_LE(size, empty + room);
    EXPECT_EQ(written, room / 16);
    const Message message = ReadMessage(buffer.substr(0, size));
    ASSERT_TRUE(message.readable) << room;
    EXPECT_EQ(message.answer.size(), written);
    EXPECT_TRUE(message.edns) << "its place is kept";
  }
}

TEST(WriterTest, BadVers_HasItsUpperBitsInTheOptRecord) {
  QueryShape shape;
  shape.udp_bytes = 512;
  Query query;
  const std::string bytes = QueryBytes("x.failback", type::kA, shape);
  ASSERT_TRUE(ReadQuery(bytes, &query).answer);
  char buffer[512];
  Writer writer(buffer, sizeof(buffer));
  writer.Begin(query, Rcode::kBadVers);
  const Message message = ReadMessage({buffer, writer.End()});
  EXPECT_EQ(message.rcode, 16);
  EXPECT_THAT(message.answer, IsEmpty());
}

}  // namespace
}  // namespace failback::dns
