// The Admin of a registry on a store of its own.

#ifndef FAILBACK_REGISTRY_STORE_ADMIN_H_
#define FAILBACK_REGISTRY_STORE_ADMIN_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "registry/registry_admin.h"
#include "registry/store/store_registry.h"

namespace failback {

// `registry` outlives the object. `store` is as configured.
std::unique_ptr<RegistryAdmin> NewStoreAdmin(StoreRegistry* registry, std::string store,
                                             absl::Time start_time);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_ADMIN_H_
