// Whether a session that has run out may end, or so many fail that the fault is more likely the
// network's.
//
// Too many fail when more than a share of all sessions do, from a number of sessions up. Sessions
// have owners where callers are distinguished, and what is decided about the sessions of one owner
// must not be in the hands of another: it is decided again for each other owner as if that one had
// a single session, which is well. Only when too many fail in each of these cases too is the end
// held. So one owner that abandons three hundred sessions holds its own; where half of all owners
// lose touch, everybody's are held. Where all sessions have the same owner, as without access
// control, there is no other and the share alone decides.
//
// Example:
//
//   EvictionVote::Owners owners;
//   for (const Lease& lease : leases) owners[lease.owner].Add(lease.failing);
//   const EvictionVote vote(rule, owners);
//   if (vote.MayEnd(lease.owner)) End(lease);
//
// Thread safety: immutable.

#ifndef FAILBACK_REGISTRY_STORE_EVICTION_VOTE_H_
#define FAILBACK_REGISTRY_STORE_EVICTION_VOTE_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace failback {

class EvictionVote {
 public:
  struct Rule {
    int64_t min_sessions = 20;
    double share = 0.15;
  };
  struct Count {
    int64_t sessions = 0;
    int64_t failing = 0;

    void Add(bool fails) {
      ++sessions;
      if (fails) ++failing;
    }
  };
  using Owners = absl::flat_hash_map<absl::string_view, Count>;

  EvictionVote(const Rule& rule, const Owners& owners);

  // Whether a session of `owner` that has run out may end. Constant time.
  bool MayEnd(absl::string_view owner) const;
  // What was counted, of all owners.
  const Count& all() const { return all_; }

 private:
  // The largest number that an owner has, and the next one's.
  struct Largest {
    double first = -std::numeric_limits<double>::infinity();
    double second = -std::numeric_limits<double>::infinity();
    std::string owner;  // that has the first

    void Take(absl::string_view candidate, double number);
    double Except(absl::string_view left_out) const { return left_out == owner ? second : first; }
  };

  const Rule rule_;
  Count all_;
  Largest excess_;
  Largest sessions_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_EVICTION_VOTE_H_
