// Response-rate limiting: how many responses a network gets by UDP, so that forged queries make
// this server no weapon against it.
//
// Networks (/24, and /56 of IPv6) share 65,536 buckets by a keyed hash; each bucket gives so many
// responses a second, and up to as many at once. Networks that fall into one bucket share it; who
// forges addresses cannot make room there, as nothing is ever removed. Of the responses beyond it
// every second one is to be sent empty and truncated: a client that has the address comes back by
// TCP, and the others get less than they sent.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_GATEWAY_DNS_RATE_LIMIT_H_
#define FAILBACK_GATEWAY_DNS_RATE_LIMIT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace failback::dns {

// What is taken for one client: the /24 of an IPv4 address, the /56 of an IPv6 one.
std::string_view NetworkOf(std::string_view address);

class RateLimit {
 public:
  enum class Verdict { kAnswer, kTruncate, kDrop };

  static constexpr size_t kBuckets = size_t{1} << 16;

  // `per_second`: 0 for no limit. `key`: random.
  RateLimit(uint32_t per_second, const std::array<uint64_t, 2>& key, size_t buckets = kBuckets);

  // For one response to `address`, of 4 or 16 bytes, at this time.
  Verdict Take(std::string_view address, int64_t now_nanos);

 private:
  struct Bucket {
    uint32_t tokens = 0;
    uint32_t filled_us = 0;  // when, in microseconds since the first; goes round in an hour
  };

  const uint32_t per_second_;
  const std::array<uint64_t, 2> key_;
  int64_t began_nanos_ = 0;
  bool began_ = false;
  bool drop_ = false;  // the next one beyond the limit
  std::vector<Bucket> buckets_;
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_RATE_LIMIT_H_
