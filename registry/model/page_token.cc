#include "registry/model/page_token.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

constexpr size_t kDigestDigits = 16;

std::string DigestOf(std::string_view listing, std::string_view place) {
  std::string text(listing);
  text += '\0';
  text += place;
  return absl::StrCat(absl::Hex(Digest64(text), absl::kZeroPad16));
}

}  // namespace

std::string PageToken(std::string_view listing, std::string_view place) {
  if (place.empty()) return "";
  return absl::WebSafeBase64Escape(DigestOf(listing, place) + std::string(place));
}

absl::StatusOr<std::string> ParsePageToken(std::string_view listing, const std::string& token) {
  std::string text;
  if (token.empty()) return text;
  if (!absl::WebSafeBase64Unescape(token, &text) || text.size() <= kDigestDigits) {
    return InvalidPageToken();
  }
  std::string place = text.substr(kDigestDigits);
  if (text.compare(0, kDigestDigits, DigestOf(listing, place)) != 0) return InvalidPageToken();
  return place;
}

absl::StatusOr<ListPlace> ListPlaceOf(const registry::v1::ListRequest& request) {
  const int page_size =
      request.page_size() == 0 ? kMaxPageSize : std::min(request.page_size(), kMaxPageSize);
  ListPlace place = {"", static_cast<size_t>(page_size)};
  registry::v1::InstanceKey key;
  if (!request.page_token().empty() &&
      (!absl::WebSafeBase64Unescape(request.page_token(), &place.after) ||
       !ParseCanonicalKey(place.after, &key))) {
    return InvalidPageToken();
  }
  return place;
}

std::string ListPageToken(const std::string& after) { return absl::WebSafeBase64Escape(after); }

absl::Status InvalidPageToken() {
  return InvalidField("page_token", "is not a token of an earlier page");
}

}  // namespace failback
