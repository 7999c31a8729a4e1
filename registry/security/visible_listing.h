// A listing for a caller who may not read everything.
//
// It goes through the services that the caller may read and leaves the others untouched: neither
// records nor page tokens, neither their number nor the time of a page tell what is in a service
// that is hidden. Only the names of services are gone through, whoever asks.
//
// Thread safety: as what is passed.

#ifndef FAILBACK_REGISTRY_SECURITY_VISIBLE_LISTING_H_
#define FAILBACK_REGISTRY_SECURITY_VISIBLE_LISTING_H_

#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "registry/local_listing.h"

namespace failback {

using MayRead = absl::FunctionRef<bool(std::string_view name_space, std::string_view service)>;

absl::StatusOr<ListResponse> ListVisible(const LocalListing& listing, MayRead may_read,
                                         const ListRequest& request);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_VISIBLE_LISTING_H_
