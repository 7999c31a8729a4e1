#include "gateway/dns/rate_limit.h"

#include "gateway/dns/cookie.h"

namespace failback::dns {
namespace {

constexpr size_t kNetwork4 = 3;  // bytes
constexpr size_t kNetwork6 = 7;
constexpr uint64_t kMicros = 1000000;  // of a second

}  // namespace

std::string_view NetworkOf(std::string_view address) {
  return address.substr(0, address.size() == 4 ? kNetwork4 : kNetwork6);
}

RateLimit::RateLimit(uint32_t per_second, const std::array<uint64_t, 2>& key, size_t buckets)
    : per_second_(per_second), key_(key) {
  if (per_second > 0) buckets_.resize(buckets, Bucket{per_second, 0});
}

RateLimit::Verdict RateLimit::Take(std::string_view address, int64_t now_nanos) {
  if (per_second_ == 0) return Verdict::kAnswer;
  if (!began_) {
    began_ = true;
    began_nanos_ = now_nanos;
  }
  Bucket& bucket = buckets_[SipHash(key_, NetworkOf(address)) % buckets_.size()];
  const auto now_us = static_cast<uint32_t>((now_nanos - began_nanos_) / 1000);
  const uint64_t earned = uint64_t{now_us - bucket.filled_us} * per_second_ / kMicros;
  if (bucket.tokens + earned >= per_second_) {
    bucket.tokens = per_second_;
    bucket.filled_us = now_us;
  } else if (earned > 0) {
    // What is left of a token goes on.
    bucket.tokens += static_cast<uint32_t>(earned);
    bucket.filled_us += static_cast<uint32_t>(earned * kMicros / per_second_);
  }
  if (bucket.tokens > 0) {
    --bucket.tokens;
    return Verdict::kAnswer;
  }
  drop_ = !drop_;
  return drop_ ? Verdict::kTruncate : Verdict::kDrop;
}

}  // namespace failback::dns
