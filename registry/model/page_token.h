// Page tokens of listings that are made anew for each page: what the last row of a page sorts by.
//
// A token has a digest of its place, so that text that came from elsewhere, and the token of another
// listing, is refused and not taken for some place: a page from there would be no page of what
// was asked for. It keeps out mistakes, not who computes the digest: what a caller may not see must
// not hang on a token (registry/security/token_seal.h).
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

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace failback {

// The token of the page behind `place` in `listing`. Empty for the empty place: no page follows.
std::string PageToken(std::string_view listing, std::string_view place);

// The place of a token of `listing`, empty for the empty one. InvalidPageToken() for anything else.
absl::StatusOr<std::string> ParsePageToken(std::string_view listing, const std::string& token);

// INVALID_ARGUMENT, which names `page_token`.
absl::Status InvalidPageToken();

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_PAGE_TOKEN_H_
