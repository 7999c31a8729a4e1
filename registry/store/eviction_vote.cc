#include "registry/store/eviction_vote.h"

namespace failback {
namespace {

// What sums of shares may be off.
constexpr double kRounding = 1e-9;

}  // namespace

void EvictionVote::Largest::Take(absl::string_view candidate, double number) {
  if (number > first) {
    second = first;
    first = number;
    owner = std::string(candidate);
  } else if (number > second) {
    second = number;
  }
}

EvictionVote::EvictionVote(const Rule& rule, const Owners& owners) : rule_(rule) {
  for (const auto& [owner, count] : owners) {
    all_.sessions += count.sessions;
    all_.failing += count.failing;
    const auto sessions = static_cast<double>(count.sessions);
    // By so much the excess over the share becomes less when the owner has one session, which is
    // well.
    excess_.Take(owner, static_cast<double>(count.failing) - rule.share * (sessions - 1));
    sessions_.Take(owner, sessions);
  }
}

bool EvictionVote::MayEnd(absl::string_view owner) const {
  if (all_.sessions < rule_.min_sessions) return true;
  const auto sessions = static_cast<double>(all_.sessions);
  const double excess = static_cast<double>(all_.failing) - rule_.share * sessions;
  if (excess <= kRounding) return true;
  const double other = sessions_.Except(owner);
  if (other < 0) return false;  // there is none
  return sessions - other + 1 < static_cast<double>(rule_.min_sessions) ||
         excess - excess_.Except(owner) <= kRounding;
}

}  // namespace failback
