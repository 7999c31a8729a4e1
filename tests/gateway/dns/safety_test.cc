// What keeps the server from being a weapon: cookies and the rate limit.

#include <array>
#include <string>

#include "absl/strings/escaping.h"
#include "gateway/dns/cookie.h"
#include "gateway/dns/rate_limit.h"
#include "gtest/gtest.h"

namespace failback::dns {
namespace {

constexpr std::array<uint64_t, 2> kSecret = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
constexpr int64_t kSecond = 1000000000;

TEST(SipHashTest, TheAuthorsVectors) {
  // Of the key 00 01 … 0f and the messages 00 01 …, from the reference implementation.
  EXPECT_EQ(SipHash(kSecret, ""), 0x726fdb47dd0e0e31u);
  std::string message;
  for (char c = 0; c < 15; ++c) message += c;
  EXPECT_EQ(SipHash(kSecret, message), 0xa129ca6149be45e5u);
}

TEST(CookieTest, Rfc9018_A1) {
  const auto little = [](const std::string& hex) {
    const std::string bytes = absl::HexStringToBytes(hex);
    uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return value;
  };
  const CookieJar jar({little("e5e973e5a6b2a43f"), little("48e7dc849e37bfcf")});
  const std::string client = absl::HexStringToBytes("2464c4abcf10c957");
  const std::string address = {static_cast<char>(198), 51, 100, 100};
  const auto cookie = jar.Make(client, address, 0x5cf79f11);
  EXPECT_EQ(absl::BytesToHexString({cookie.data(), cookie.size()}),
            "2464c4abcf10c957010000005cf79f111f8130c3eee29480");
}

TEST(CookieTest, OnlyTheServersOwnForThatAddressAndHour) {
  const CookieJar jar(kSecret);
  const std::string address = "\x0a\x01\x02\x03";
  const auto made = jar.Make("01234567", address, 10000);
  const std::string cookie(made.data(), made.size());
  EXPECT_TRUE(jar.Check(cookie, address, 10000));
  EXPECT_TRUE(jar.Check(cookie, address, 13600));
  EXPECT_FALSE(jar.Check(cookie, address, 13601)) << "more than an hour old";
  EXPECT_FALSE(jar.Check(cookie, address, 9000)) << "of the future";
  EXPECT_FALSE(jar.Check(cookie, "\x0a\x01\x02\x04", 10000)) << "another address";
  EXPECT_FALSE(CookieJar({1, 2}).Check(cookie, address, 10000)) << "another server's";
  EXPECT_FALSE(jar.Check("01234567", address, 10000)) << "the client's alone";
  for (size_t i = 0; i < cookie.size(); ++i) {
    std::string other = cookie;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(jar.Check(other, address, 10000)) << i;
  }
}

TEST(RateLimitTest, BeyondTheLimit_EverySecondIsTruncated) {
  RateLimit limit(10, kSecret);
  const std::string address = "\x0a\x01\x02\x03";
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(limit.Take(address, kSecond), RateLimit::Verdict::kAnswer);
  }
  EXPECT_EQ(limit.Take(address, kSecond), RateLimit::Verdict::kTruncate);
  EXPECT_EQ(limit.Take(address, kSecond), RateLimit::Verdict::kDrop);
  EXPECT_EQ(limit.Take(address, kSecond), RateLimit::Verdict::kTruncate);
  EXPECT_EQ(limit.Take("\x0a\x01\x02\x04", kSecond), RateLimit::Verdict::kDrop)
      << "the same network";
  EXPECT_EQ(limit.Take("\x0a\x01\x03\x03", kSecond), RateLimit::Verdict::kAnswer) << "another";
}

TEST(RateLimitTest, TheRateHolds_HoweverItIsAsked) {
  RateLimit limit(700, kSecret);
  const std::string address = "\x0a\x01\x02\x03";
  int answered = 0;
  // 10 s, a query each 100 us.
  for (int64_t now = 0; now < 10 * kSecond; now += 100000) {
    answered += limit.Take(address, now) == RateLimit::Verdict::kAnswer ? 1 : 0;
  }
  EXPECT_GE(answered, 7600);
  EXPECT_LE(answered, 7710) << "what it has at first, and 700 for each second";
}

TEST(RateLimitTest, Ipv6_IsLimitedByItsNetworkOf56Bits) {
  RateLimit limit(1, kSecret);
  std::string address(16, '\1');
  EXPECT_EQ(limit.Take(address, 0), RateLimit::Verdict::kAnswer);
  address[7] = 9;
  EXPECT_NE(limit.Take(address, 0), RateLimit::Verdict::kAnswer);
  address[6] = 9;
  EXPECT_EQ(limit.Take(address, 0), RateLimit::Verdict::kAnswer);
}

TEST(RateLimitTest, Zero_IsNoLimit) {
  RateLimit limit(0, kSecret);
  for (int i = 0; i < 100000; ++i) {
    ASSERT_EQ(limit.Take("\x0a\x01\x02\x03", 0), RateLimit::Verdict::kAnswer);
  }
}

}  // namespace
}  // namespace failback::dns
