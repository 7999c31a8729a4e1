// The names that clients ask for, as `xds:///orders`, and the services they mean.
//
//   orders            service `orders` of the namespace `default`
//   staging/orders    service `orders` of the namespace `staging`
//   default/v2/orders service `v2/orders` of the namespace `default`
//
// What stands before the first slash is the namespace; without a slash it is `default`. It is the
// spelling of keys everywhere else in the project. A dot is no separator: services and namespaces
// may both have dots, so `orders.staging` is a service of that name.
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_XDS_SERVICE_NAME_H_
#define FAILBACK_GATEWAY_XDS_SERVICE_NAME_H_

#include <string>

#include "absl/status/statusor.h"
#include "registry/registry.h"

namespace failback::xds {

// Which instances `name` means. INVALID_ARGUMENT says why it can be no service.
absl::StatusOr<Selector> ParseServiceName(const std::string& name);

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_SERVICE_NAME_H_
