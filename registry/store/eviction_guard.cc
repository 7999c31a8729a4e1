#include "registry/store/eviction_guard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "registry/base/log.h"

namespace failback {
namespace {

// Counts of one moment, for different TTLs. Further ones take that of the nearest.
constexpr size_t kMostCounts = 8;
// Unless the configuration says otherwise a lease is held for so many TTLs at most, and so long.
constexpr int64_t kHeldTtls = 10;
constexpr int64_t kHeldNanos = int64_t{300} * 1000 * 1000 * 1000;

}  // namespace

void EvictionGuard::Period::LogEnd() const {
  if (held == 0) return;
  const absl::Duration length = absl::Nanoseconds(end - begin);
  Log(LogLevel::kInfo, "no session is held any more",
      {{"held", absl::StrCat(held)},
       {"renewed", absl::StrCat(renewed)},
       {"for", absl::FormatDuration(absl::Trunc(length, absl::Milliseconds(1)))}});
}

void EvictionGuard::Granted(int64_t ttl) { largest_ttl_ = std::max(largest_ttl_, ttl); }

const EvictionVote& EvictionGuard::Vote(int64_t ttl, int64_t now,
                                        absl::FunctionRef<void(EvictionVote::Owners*)> count) {
  if (counted_at_ == INT64_MIN || now - counted_at_ >= kCountEveryNanos) {
    counted_at_ = now;
    votes_.clear();
  }
  if (const auto it = votes_.find(ttl); it != votes_.end()) return it->second;
  if (votes_.size() >= kMostCounts) {
    const auto nearest = votes_.lower_bound(ttl);
    return nearest == votes_.end() ? votes_.rbegin()->second : nearest->second;
  }
  while (!ended_.empty() && ended_.front().at <= now - largest_ttl_) ended_.pop_front();
  EvictionVote::Owners owners;
  count(&owners);
  for (auto it = ended_.rbegin(); it != ended_.rend() && it->at > now - ttl; ++it) {
    owners[it->owner].Add(true);
  }
  return votes_.emplace(ttl, EvictionVote(rule_, owners)).first->second;
}

void EvictionGuard::Recount() { counted_at_ = INT64_MIN; }

int64_t EvictionGuard::HoldEnds(int64_t renewed, int64_t ttl) const {
  const int64_t longest =
      longest_hold_ != 0 ? longest_hold_ : std::min(kHeldTtls * ttl, kHeldNanos);
  return renewed + ttl + longest;
}

void EvictionGuard::Hold(int64_t now) {
  if (period_.held++ == 0) period_.begin = now;
  ++held_;
  ++holds_;
}

EvictionGuard::Period EvictionGuard::TakeEnded(int64_t now) {
  if (period_.held == 0 || held_ > 0) return {};
  period_.end = now;
  return std::exchange(period_, {});
}

}  // namespace failback
