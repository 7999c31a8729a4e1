#include "agent/upstreams.h"

#include <utility>

namespace failback {

absl::StatusOr<std::vector<FailbackGroup::Upstream>> NewUpstreams(
    const std::vector<std::string>& texts, HashedWheelTimer* timer,
    const std::vector<SchemeFactory>& schemes, UpstreamOptions options) {
  for (const SchemeFactory& make : schemes) options.schemes.push_back(make(timer));
  options.grpc.timer = timer;
  std::vector<FailbackGroup::Upstream> upstreams;
  for (const std::string& text : texts) {
    const absl::StatusOr<NamedUri> named = ParseNamedUri(text);
    if (!named.ok()) return named.status();
    auto registry = NewUpstream(named->uri, options);
    if (!registry.ok()) return registry.status();
    upstreams.push_back({named->name, named->uri, *std::move(registry)});
  }
  return upstreams;
}

}  // namespace failback
