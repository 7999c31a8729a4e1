// The parameters of a query, and when it is answered.
//
// A query with `index` is a blocking one: it is answered as soon as the set is another than the one
// of that index, and after `wait` in any case. An index of zero, and one that is ahead of ours, is
// answered at once: the client starts over (a registry was restored, or it talked to another
// daemon).
//
// Parameters that change nothing here are accepted: `stale`, `consistent`, `cached`, `near`, as all
// reads are answered from the same set. `filter` and every other one is refused: leaving it out would
// answer another question than was asked.
//
// Example:
//
//   absl::StatusOr<Query> query = ParseQuery(request.query, Query::kTags, "default");
//   if (!query.ok()) return Refuse(query.status());
//   if (IsDue(*query, view.index)) return Answer(view);
//
// Thread safety: plain values; the functions are pure.

#ifndef FAILBACK_GATEWAY_CONSUL_QUERY_H_
#define FAILBACK_GATEWAY_CONSUL_QUERY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace failback::consul {

struct Query {
  // What else than the common ones a call has.
  enum Accepts : unsigned {
    kNothingElse = 0,
    kTags = 1,     // tag, passing
    kPassing = 2,  // passing
    kAny = 4,      // whatever there is: of calls that need none
    kMembers = 8,  // wan, segment
  };

  std::string name_space;  // dc
  bool blocking = false;
  uint64_t index = 0;
  // How long a blocking query waits, before what is added to spread clients out.
  absl::Duration wait;
  std::vector<std::string> tags;  // all of them
  bool passing = false;
};

inline constexpr absl::Duration kDefaultQueryWait = absl::Minutes(5);
inline constexpr absl::Duration kLongestQueryWait = absl::Minutes(10);

using Parameters = std::vector<std::pair<std::string, std::string>>;

// `own` is the datacenter of this door. INVALID_ARGUMENT names the parameter.
absl::StatusOr<Query> ParseQuery(const Parameters& parameters, unsigned accepts,
                                 const std::string& own);

// As Go reads it, and with it Consul: 1, t, T, TRUE, true, True and their opposites.
std::optional<bool> ParseBool(const std::string& text);

// Whether a client that has this query is answered with the set of `index`.
bool IsDue(const Query& query, uint64_t index);

// What is added to `wait`, up to a sixteenth of it. `random` is in [0, 1).
absl::Duration WaitWithJitter(absl::Duration wait, double random);

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_QUERY_H_
