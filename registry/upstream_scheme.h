// A kind of registry that a URI can name: what the code that serves it adds to
// UpstreamOptions::schemes (registry/client/upstream.h).

#ifndef FAILBACK_REGISTRY_UPSTREAM_SCHEME_H_
#define FAILBACK_REGISTRY_UPSTREAM_SCHEME_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "registry/registry.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// URIs that start with `name` and a colon.
struct UpstreamScheme {
  std::string name;
  // For messages, as "sqlite:///path".
  std::string form;
  // Makes the registry; an error says what is wrong with the URI, without repeating it.
  std::function<absl::StatusOr<std::unique_ptr<Registry>>(const std::string& uri)> make;
};

// A scheme whose registries ride on a timer, which outlives them; as EtcdScheme of
// registry/etcd/etcd_uri.h.
using SchemeFactory = std::function<UpstreamScheme(HashedWheelTimer* timer)>;

}  // namespace failback

#endif  // FAILBACK_REGISTRY_UPSTREAM_SCHEME_H_
