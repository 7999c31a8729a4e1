// One listing of what several registries list, merged by key, page by page.
//
// Each registry's listing is sorted by key and has page tokens of its own. A merged page ends where
// the shortest of the pages ends that make it, and its token says for each registry which page to
// ask for next, and after which key to go on; so nothing is kept between two calls.
//
//   auto place = MergedPlace::Parse(request.page_token(), registries);
//   … ask registry i for the page place.tokens[i], unless that is nullopt …
//   response = MergePages(request.page_size(), *place, pages);
//
// A key that several registries hold is listed as the first one lists it, in their order, one that
// is not stale before one that is.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_FAILBACK_MERGED_PAGES_H_
#define FAILBACK_REGISTRY_FAILBACK_MERGED_PAGES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/registry.h"

namespace failback {

// A page is closed when its records have so many bytes: gRPC clients take 4 MiB.
inline constexpr size_t kPageBytes = 2 << 20;

// How far a merged listing has come.
struct MergedPlace {
  // The beginning for an empty token. INVALID_ARGUMENT names `page_token`.
  static absl::StatusOr<MergedPlace> Parse(const std::string& token, size_t registries);
  // Empty when every listing has ended.
  std::string Format() const;

  // Canonical key of what was listed last.
  std::string after;
  // By registry; nullopt: its listing has ended.
  std::vector<std::optional<std::string>> tokens;
};

// Of two states of one intent at two registries, the one that is less far.
registry::v1::IntentState LesserState(registry::v1::IntentState a, registry::v1::IntentState b);

// Whether a page of `rows` rows ends before the next one, with which it would have `bytes` bytes.
// The first row always fits. `limit` is the most rows; 0: the bytes alone are bounded.
constexpr bool PageIsFull(int rows, int limit, size_t bytes) {
  return (limit > 0 && rows == limit) || (rows > 0 && bytes > kPageBytes);
}

// The page after `place`; `pages` has one for each registry, empty where the listing has ended.
// At most `page_size` records (0: kMaxPageSize, which is also the most) and about kPageBytes.
ListResponse MergePages(int page_size, const MergedPlace& place,
                        const std::vector<ListResponse>& pages);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_MERGED_PAGES_H_
