// The eviction guard: whether a lease that has run out may end its session, or is held as too many
// would end at once. Pure: the leases and the time come from Leases, which owns it and locks it.
//
// One count of all leases serves every decision of the next 50 ms with the same TTL, so that a
// thousand leases that run out together are not counted a thousand times. It counts leases that
// have missed their renewals, and sessions that have been ended within one TTL.
//
// Thread safety: none.

#ifndef FAILBACK_REGISTRY_STORE_EVICTION_GUARD_H_
#define FAILBACK_REGISTRY_STORE_EVICTION_GUARD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "registry/store/eviction_vote.h"

namespace failback {

class EvictionGuard {
 public:
  // While leases run out, how many miss their renewals is counted this often at most.
  static constexpr int64_t kCountEveryNanos = 50 * 1000 * 1000;

  // From the first lease that is held until none is.
  struct Period {
    int64_t held = 0;  // leases; one that is held twice counts twice
    int64_t renewed = 0;
    int64_t begin = 0;
    int64_t end = 0;

    // A line in the log, if any was held.
    void LogEnd() const;
  };

  // All times are in nanoseconds. `longest_hold`: zero is ten times the lease's TTL, at most five
  // minutes.
  EvictionGuard(bool on, const EvictionVote::Rule& rule, int64_t longest_hold)
      : on_(on), rule_(rule), longest_hold_(longest_hold) {}

  bool on() const { return on_; }
  void Switch(bool on) { on_ = on; }

  // A lease with `ttl` is granted; no lease is left.
  void Granted(int64_t ttl);
  void Clear() { largest_ttl_ = 0; }
  // A session of `owner` was ended by its lease.
  void Ended(const std::string& owner, int64_t now) { ended_.push_back({now, owner}); }

  // What a lease with `ttl` is judged by. `count` adds the leases that there are to their owners.
  const EvictionVote& Vote(int64_t ttl, int64_t now,
                           absl::FunctionRef<void(EvictionVote::Owners*)> count);
  // The next vote counts again.
  void Recount();

  // When a lease that was renewed last at `renewed` is let go at the latest.
  int64_t HoldEnds(int64_t renewed, int64_t ttl) const;

  // A lease is held from now on; is no longer; was renewed while it was held.
  void Hold(int64_t now);
  void Unhold() { --held_; }
  void CountRenewal() { ++period_.renewed; }
  int64_t held() const { return held_; }    // now
  int64_t holds() const { return holds_; }  // in all
  // The period that has ended at `now`, once; else an empty one.
  Period TakeEnded(int64_t now);

 private:
  struct EndedSession {
    int64_t at;
    std::string owner;
  };

  bool on_;
  const EvictionVote::Rule rule_;
  const int64_t longest_hold_;
  int64_t largest_ttl_ = 0;
  std::deque<EndedSession> ended_;  // in order
  int64_t counted_at_ = INT64_MIN;
  std::map<int64_t, EvictionVote> votes_;  // counted then, by TTL
  int64_t held_ = 0;
  int64_t holds_ = 0;
  Period period_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_EVICTION_GUARD_H_
