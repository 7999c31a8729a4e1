#include "gateway/dns/cookie.h"

#include <sys/random.h>

#include <cstdlib>
#include <cstring>

#include "gateway/dns/message.h"

namespace failback::dns {
namespace {

constexpr char kVersion[4] = {1, 0, 0, 0};
constexpr uint32_t kLongestAgeSeconds = 3600;
// Another server's clock may be ahead by as much (RFC 9018, 4.3).
constexpr uint32_t kAheadSeconds = 300;
constexpr size_t kHashed = 8 + 4 + 4;  // client's cookie, version, time; then the address

uint64_t Rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

uint64_t LittleEndian(const char* bytes, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

void Round(uint64_t v[4]) {
  v[0] += v[1];
  v[1] = Rotate(v[1], 13) ^ v[0];
  v[0] = Rotate(v[0], 32);
  v[2] += v[3];
  v[3] = Rotate(v[3], 16) ^ v[2];
  v[0] += v[3];
  v[3] = Rotate(v[3], 21) ^ v[0];
  v[2] += v[1];
  v[1] = Rotate(v[1], 17) ^ v[2];
  v[2] = Rotate(v[2], 32);
}

}  // namespace

// Aumasson and Bernstein, "SipHash: a fast short-input PRF".
uint64_t SipHash(const std::array<uint64_t, 2>& key, std::string_view bytes) {
  uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
                   key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
  const auto take = [&v](uint64_t word) {
    v[3] ^= word;
    Round(v);
    Round(v);
    v[0] ^= word;
  };
  size_t at = 0;
  for (; bytes.size() - at >= 8; at += 8) take(LittleEndian(bytes.data() + at, 8));
  take(LittleEndian(bytes.data() + at, bytes.size() - at) | static_cast<uint64_t>(bytes.size())
                                                                << 56);
  v[2] ^= 0xff;
  for (int i = 0; i < 4; ++i) Round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

std::array<uint64_t, 2> RandomKey() {
  std::array<uint64_t, 2> key;
  // It cannot fail for so few bytes, once the system is up.
  if (getentropy(key.data(), sizeof(key)) != 0) std::abort();
  return key;
}

CookieJar::Cookie CookieJar::MakeAt(std::string_view client, std::string_view address,
                                    uint32_t seconds) const {
  char hashed[kHashed + 16];
  std::memcpy(hashed, client.data(), kClientCookieBytes);
  std::memcpy(hashed + 8, kVersion, sizeof(kVersion));
  for (int i = 0; i < 4; ++i) hashed[12 + i] = static_cast<char>(seconds >> (24 - 8 * i));
  std::memcpy(hashed + kHashed, address.data(), address.size());
  const uint64_t hash = SipHash(secret_, {hashed, kHashed + address.size()});
  Cookie cookie;
  std::memcpy(cookie.data(), hashed, kHashed);
  for (int i = 0; i < 8; ++i) cookie[kHashed + i] = static_cast<char>(hash >> (8 * i));
  return cookie;
}

CookieJar::Cookie CookieJar::Make(std::string_view sent, std::string_view address,
                                  uint32_t now_seconds) const {
  return MakeAt(sent.substr(0, kClientCookieBytes), address, now_seconds);
}

bool CookieJar::Check(std::string_view sent, std::string_view address, uint32_t now_seconds) const {
  if (sent.size() != kBytes) return false;
  uint32_t made = 0;
  for (int i = 0; i < 4; ++i) made = made << 8 | static_cast<uint8_t>(sent[12 + i]);
  // Serial numbers (RFC 1982): they go round.
  const auto age = static_cast<int32_t>(now_seconds - made);
  if (age > static_cast<int32_t>(kLongestAgeSeconds) || age < -static_cast<int32_t>(kAheadSeconds))
    return false;
  const Cookie right = MakeAt(sent.substr(0, kClientCookieBytes), address, made);
  unsigned difference = 0;
  for (size_t i = 0; i < kBytes; ++i) {
    difference |= static_cast<uint8_t>(right[i]) ^ static_cast<uint8_t>(sent[i]);
  }
  return difference == 0;
}

}  // namespace failback::dns
