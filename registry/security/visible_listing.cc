#include "registry/security/visible_listing.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "registry/errors.h"
#include "registry/validation.h"

namespace failback {
namespace {

// A page is full when it has so much: what is added to it last has 2 MiB at most, and both together
// are less than what a client takes.
constexpr size_t kFullBytes = 1 << 20;
// Listings of single services that make one page; then it may be shorter than asked for.
constexpr int kMostListings = 1000;

// Where a listing goes on: within a service that the caller has seen.
struct Place {
  std::string service;  // namespace NUL service
  std::string token;    // of that service's listing; empty: from its beginning
};

std::string ToToken(const Place& place) {
  return absl::WebSafeBase64Escape(absl::StrCat(place.service, std::string(1, '\0'), place.token));
}

bool FromToken(const std::string& token, Place* place) {
  std::string text;
  if (!absl::WebSafeBase64Unescape(token, &text)) return false;
  const size_t name = text.find('\0');
  if (name == std::string::npos) return false;
  const size_t end = text.find('\0', name + 1);
  if (end == std::string::npos) return false;
  *place = {text.substr(0, end), text.substr(end + 1)};
  return true;
}

}  // namespace

absl::StatusOr<ListResponse> ListVisible(const LocalListing& listing, MayRead may_read,
                                         const ListRequest& request) {
  if (auto status = ValidateList(request); !status.ok()) return status;
  Place place;
  if (!request.page_token().empty() && !FromToken(request.page_token(), &place)) {
    return InvalidField("page_token", "is not a token of an earlier page");
  }
  const Selector& selector = request.selector();
  std::string name_space = selector.namespace_();
  if (name_space.empty() && (request.has_selector() || request.incarnation().empty())) {
    name_space = kDefaultNamespace;
  }
  std::vector<std::string> services;
  if (selector.service().empty()) {
    services = listing.ServicesOf(name_space);
  } else {
    services.push_back(absl::StrCat(name_space, std::string(1, '\0'), selector.service()));
  }
  const int page_size =
      request.page_size() == 0 ? kMaxPageSize : std::min(request.page_size(), kMaxPageSize);
  ListResponse page;
  listing.SetPosition(&page);
  ListRequest inner = request;
  size_t bytes = 0;
  int listings = 0;
  for (auto service = std::lower_bound(services.begin(), services.end(), place.service);
       service != services.end(); ++service) {
    const std::string_view key = *service;
    const size_t name = key.find('\0');
    if (!may_read(key.substr(0, name), key.substr(name + 1))) continue;
    if (*service != place.service) place = {*service, ""};
    inner.mutable_selector()->set_namespace_(std::string(key.substr(0, name)));
    inner.mutable_selector()->set_service(std::string(key.substr(name + 1)));
    do {
      if (page.records_size() == page_size || bytes >= kFullBytes || listings == kMostListings) {
        page.set_next_page_token(ToToken(place));
        return page;
      }
      ++listings;
      inner.set_page_token(place.token);
      inner.set_page_size(page_size - page.records_size());
      absl::StatusOr<ListResponse> part = listing.ListNow(inner);
      if (!part.ok()) return part.status();
      bytes += part->ByteSizeLong();
      for (InstanceRecord& record : *part->mutable_records()) {
        *page.add_records() = std::move(record);
      }
      place.token = part->next_page_token();
    } while (!place.token.empty());
  }
  return page;
}

}  // namespace failback
