// Page tokens of listings that are made again for each page: what the last row of a page sorts by.
//
// A token has a digest of its place, so that text that came from elsewhere, and the token of
// another listing, is refused and not taken for some place: a page from there would be no page of
// what was asked for. It keeps out mistakes, not who computes the digest: what a caller may not see
// must not hang on a token (registry/security/token_seal.h).
//
// Example:
//
//   absl::StatusOr<std::string> after = ParsePageToken("sessions", request.page_token());
//   if (!after.ok()) return after.status();
//   … the rows behind *after, or all if that is empty …
//   response.set_next_page_token(PageToken("sessions", PlaceOf(last_row)));
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_PAGE_TOKEN_H_
#define FAILBACK_REGISTRY_MODEL_PAGE_TOKEN_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

// The token of the page behind `place` in `listing`. Empty for the empty place: no page follows.
std::string PageToken(std::string_view listing, std::string_view place);

// The place of a token of `listing`, empty for the empty one. InvalidPageToken() for anything else.
absl::StatusOr<std::string> ParsePageToken(std::string_view listing, const std::string& token);

// Where a page of a List begins, and how much it has at most. Its tokens are canonical keys: the
// order is that of the store, the same for every listing, and who follows a token follows a key.
struct ListPlace {
  std::string after;  // canonical key; empty: from the start
  size_t page_size = 0;
};
// Of a valid request. InvalidPageToken() for a token that no listing has made.
absl::StatusOr<ListPlace> ListPlaceOf(const registry::v1::ListRequest& request);
// The token of the page behind `after`; empty for the empty one.
std::string ListPageToken(const std::string& after);

// INVALID_ARGUMENT, which names `page_token`.
absl::Status InvalidPageToken();

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_PAGE_TOKEN_H_
