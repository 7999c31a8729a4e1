// The URI of an etcd cluster as a registry:
//
//   etcd://h1:2379,h2:2379,h3:2379[/prefix][?user=U&password_file=F&ca=F&cert=F&key=F&server_name=N]
//
// The prefix, `/failback` if there is none, is where all keys begin. With `ca` (or `cert`, or
// `tls=true`, which takes the system's authorities) connections are encrypted; `cert` and `key`
// show who the client is. The password is in a file, so that it is in no command line and no log.
//
// Example: an agent that registers in etcd, without a registry server.
//
//   Agent::Options options;
//   options.registry = "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/failback";
//   options.schemes = {EtcdScheme};
//   absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Create(options);
//
// Thread safety: all functions may be called from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_ETCD_URI_H_
#define FAILBACK_REGISTRY_ETCD_ETCD_URI_H_

#include <string>

#include "absl/status/statusor.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/upstream_scheme.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

inline constexpr char kEtcdScheme[] = "etcd";
inline constexpr char kEtcdForm[] = "etcd://host:port[,host:port...][/prefix][?option=value&...]";

// Options for the cluster that `uri` names, with defaults for the rest. INVALID_ARGUMENT says what
// is wrong with the URI, or which file cannot be read.
absl::StatusOr<EtcdRegistry::Options> ParseEtcdUri(const std::string& uri, HashedWheelTimer* timer);

// For UpstreamOptions::schemes. `timer` outlives the registries that are made; null: the URI is
// checked, and what is made is null.
UpstreamScheme EtcdScheme(HashedWheelTimer* timer);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_ETCD_URI_H_
