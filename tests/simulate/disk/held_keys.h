// What clients hold at a store, as a story on a lying disk knows it.
//
// Thread safety: none; values.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_HELD_KEYS_H_
#define FAILBACK_TESTS_SIMULATE_DISK_HELD_KEYS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace failback {

// The generation of each id that is there. The ids of client 2 begin with "c2-".
using Present = std::map<std::string, uint64_t>;

inline std::string Shown(const Present& present) {
  return absl::StrCat("{", absl::StrJoin(present, " ", absl::PairFormatter("=")), "}");
}

inline Present KeysOf(const Present& all, int client) {
  Present own;
  const std::string prefix = absl::StrCat("c", client, "-");
  for (const auto& [id, generation] : all) {
    if (absl::StartsWith(id, prefix)) own[id] = generation;
  }
  return own;
}

// The client holds `own` now, and nothing else.
inline void SetKeys(int client, const Present& own, Present* all) {
  for (const auto& [id, generation] : KeysOf(*all, client)) all->erase(id);
  all->insert(own.begin(), own.end());
}

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_HELD_KEYS_H_
