// What a connection of a RegistryServer may cost, and how long it may be idle, silent or old.
// Internal to the server.
//
// Thread safety: pure functions.

#ifndef FAILBACK_REGISTRY_SERVER_CONNECTION_BOUNDS_H_
#define FAILBACK_REGISTRY_SERVER_CONNECTION_BOUNDS_H_

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "registry/server/registry_server.h"

namespace failback {

// How old a stream becomes: where TLS is off, connections have no longest age.
absl::Duration LongestStream(const RegistryServer::Options& options);

// Sets the bounds of `options` on a server that is to be built.
void BoundConnections(const RegistryServer::Options& options, grpc::ServerBuilder* builder);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_CONNECTION_BOUNDS_H_
