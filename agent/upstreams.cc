#include "agent/upstreams.h"

#include <utility>

#include "registry/etcd/etcd_uri.h"

namespace failback {

absl::StatusOr<std::vector<FailbackGroup::Upstream>> NewUpstreams(
    const std::vector<std::string>& texts, HashedWheelTimer* timer, UpstreamOptions options) {
  options.schemes.push_back(EtcdScheme(timer));
  options.grpc.timer = timer;
  std::vector<FailbackGroup::Upstream> upstreams;
  for (const std::string& text : texts) {
    const NamedUri named = ParseNamedUri(text);
    auto registry = NewUpstream(named.uri, options);
    if (!registry.ok()) return registry.status();
    upstreams.push_back({named.name, named.uri, *std::move(registry)});
  }
  return upstreams;
}

}  // namespace failback
