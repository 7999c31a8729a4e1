// A limit that all callers share, and the share of it that one of them has at most, so that no one
// takes what others need.
//
// An owner is a name of a caller: of its token, or of its certificate. Where callers are not
// distinguished there are no owners, and only the limit itself holds.
//
//   const SharedLimit instances = {"instances", "limits.max_instances", 1000};
//   absl::Status status = instances.Check(/*in_all=*/all, /*of_owner=*/counts.Of(owner));
//   if (!status.ok()) return status;   // instances of one owner: at most 500 are allowed, its
//   share counts.Add(owner, 1);              // of limits.max_instances (1000); …
//
// Thread safety: SharedLimit is a plain value, OwnerCounts is thread-compatible.

#ifndef FAILBACK_REGISTRY_MODEL_SHARED_LIMIT_H_
#define FAILBACK_REGISTRY_MODEL_SHARED_LIMIT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace failback {

struct SharedLimit {
  const char* what = "";  // "instances"
  const char* name = "";  // as it is configured: "limits.max_instances"
  int64_t limit = 0;      // 0: none
  int64_t parts = 2;      // an owner has one of so many

  // What one owner may have; 0: no limit.
  int64_t share() const { return limit == 0 ? 0 : std::max<int64_t>(limit / parts, 1); }

  // Whether there may be one more: with `in_all` of them, and `of_owner` of the one who asks,
  // unless it has no name. Else LIMIT_REACHED, which names the limit and the share.
  absl::Status Check(int64_t in_all, std::optional<int64_t> of_owner) const {
    if (limit == 0 || (in_all < limit && of_owner.value_or(0) < share())) return absl::OkStatus();
    return Reached(in_all >= limit);
  }

  // "instances (limits.max_instances): at most 1000 are allowed", or the same of the share.
  std::string Text(bool in_all) const;

  absl::Status Reached(bool in_all) const;
};

// How many each owner has.
class OwnerCounts {
 public:
  // Nothing without a name.
  void Add(absl::string_view owner, int64_t change);
  // Nullopt without a name.
  std::optional<int64_t> Of(absl::string_view owner) const;
  bool empty() const { return counts_.empty(); }

 private:
  absl::flat_hash_map<std::string, int64_t> counts_;  // none is 0
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_SHARED_LIMIT_H_
