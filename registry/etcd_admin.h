// The Admin of a registry over etcd. What it reports is etcd's, and so the same at every registry
// over the same keys, but for the agents, which each knows of its own callers. Once etcd is known
// not to answer, that is the answer, at once.

#ifndef FAILBACK_REGISTRY_ETCD_ADMIN_H_
#define FAILBACK_REGISTRY_ETCD_ADMIN_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/registry_admin.h"

namespace failback {

// `registry` outlives the object. `store` is as configured.
std::unique_ptr<RegistryAdmin> NewEtcdAdmin(EtcdRegistry* registry, std::string store,
                                            absl::Time start_time);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_ADMIN_H_
