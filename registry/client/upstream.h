// Turns the URI of a registry into a Registry.
//
//   grpc://host:port[,host:port…]   one registry at one or several addresses
//   unix:/path                      one on this machine
//
// Further schemes (a store in this process, another system's store) come with the code that serves
// them: a program that links it adds an UpstreamScheme to the options.
//
// Example: etcd beside the two above.
//
//   UpstreamOptions options;
//   options.grpc.timer = timer.get();
//   options.schemes.push_back(EtcdScheme(timer.get()));
//   absl::StatusOr<std::unique_ptr<Registry>> upstream =
//       NewUpstream("grpc://127.0.0.1:7070", options);
//
// Thread safety: all functions may be called from any thread.

#ifndef FAILBACK_REGISTRY_CLIENT_UPSTREAM_H_
#define FAILBACK_REGISTRY_CLIENT_UPSTREAM_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/client/grpc_registry.h"
#include "registry/registry.h"
#include "registry/upstream_scheme.h"

namespace failback {

struct UpstreamOptions {
  GrpcRegistryOptions grpc;
  // Beside grpc and unix.
  std::vector<UpstreamScheme> schemes;
};

// A registry as a person names it: `NAME=URI`, or the URI alone, which is its name then too.
struct NamedUri {
  std::string name;
  std::string uri;
};
// INVALID_ARGUMENT for an empty name.
absl::StatusOr<NamedUri> ParseNamedUri(const std::string& text);

// Connects lazily: an unavailable registry is no error here. A URI that is wrong is an
// INVALID_ARGUMENT of one line that names it, what is wrong, and what is allowed.
absl::StatusOr<std::unique_ptr<Registry>> NewUpstream(const std::string& uri,
                                                      const UpstreamOptions& options);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_UPSTREAM_H_
