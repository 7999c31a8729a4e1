// A registry's options from its configuration.
//
// Thread safety: all functions may be called from any thread.

#ifndef FAILBACK_REGISTRY_REGISTRY_CONFIG_H_
#define FAILBACK_REGISTRY_REGISTRY_CONFIG_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "failback/registry/v1/config.pb.h"
#include "registry/registry.h"
#include "registry/server/registry_server.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// What the schema of the keys cannot say. INVALID_ARGUMENT names the place, the key and what is
// allowed.
absl::Status ValidateRegistryConfig(const registry::v1::RegistryConfig& config,
                                    const ConfigLoader& loader);

// Of a configuration that is valid. `timer` outlives what is made with the options.
StoreRegistry::Options ToStoreOptions(const registry::v1::RegistryConfig& config,
                                      HashedWheelTimer* timer);
RegistryServer::Options ToServerOptions(const registry::v1::RegistryConfig& config,
                                        HashedWheelTimer* timer, const ConfigLoader& loader);

// Opens what `store` names: an embedded store, or a client of etcd, which may be unavailable now.
absl::StatusOr<std::unique_ptr<Registry>> OpenStore(const registry::v1::RegistryConfig& config,
                                                    HashedWheelTimer* timer,
                                                    const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_REGISTRY_CONFIG_H_
