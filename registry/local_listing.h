// What a registry that has everything at hand tells of its listings: enough to list for callers who
// may not see all of it (registry/security/guarded_registry.h), service by service, so that a
// service that is hidden is not looked at.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_LOCAL_LISTING_H_
#define FAILBACK_REGISTRY_LOCAL_LISTING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/registry.h"

namespace failback {

class LocalListing {
 public:
  virtual ~LocalListing() = default;

  // As Registry::List.
  virtual absl::StatusOr<ListResponse> ListNow(const ListRequest& request) const = 0;

  // The services that have instances, each as `namespace NUL service`, sorted; of one namespace,
  // or, where that is empty, of all.
  virtual std::vector<std::string> ServicesOf(const std::string& name_space) const = 0;

  // Whether what `incarnation` has registered is for `owner` to see: it is the owner's, or
  // nobody's.
  virtual bool IsOwner(const std::string& incarnation, const std::string& owner) const = 0;

  // The epoch and revision of a listing that begins now.
  virtual void SetPosition(ListResponse* response) const = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_LOCAL_LISTING_H_
