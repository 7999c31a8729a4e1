#include "gateway/xds/endpoints.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/base/address.h"
#include "registry/model/selector.h"

namespace failback::xds {
namespace {

using envoy::config::core::v3::SocketAddress;
using envoy::config::endpoint::v3::ClusterLoadAssignment;
using envoy::config::endpoint::v3::LocalityLbEndpoints;

constexpr uint32_t kDefaultWeight = 100;
constexpr int kWeightSteps = 64;

// One locality to be.
struct Group {
  std::vector<const ServiceEndpoint*> members;
  uint64_t weight = 0;
};

// Priority, zone, weight (or the lowest of its step).
using GroupKey = std::tuple<uint32_t, std::string, uint32_t>;

// The endpoints that clients get: of those with the same address and port only the first.
std::vector<const ServiceEndpoint*> Choose(const ServiceEndpoints& endpoints) {
  std::vector<const ServiceEndpoint*> chosen;
  std::set<std::pair<std::string_view, uint32_t>> seen;
  for (const auto& [key, endpoint] : endpoints) {
    if (!endpoint.serving || !endpoint.usable) continue;
    if (seen.emplace(endpoint.address, endpoint.port).second) chosen.push_back(&endpoint);
  }
  return chosen;
}

// gRPC refuses a priority whose weights add up to more than fit in 32 bits.
void FitWeights(std::map<GroupKey, Group>* groups) {
  std::map<uint32_t, uint64_t> sums;
  for (const auto& [key, group] : *groups) sums[std::get<0>(key)] += group.weight;
  for (auto& [key, group] : *groups) {
    // Room for the ones that rounding would make zero.
    const uint64_t room = std::numeric_limits<uint32_t>::max() - groups->size();
    const uint64_t sum = sums[std::get<0>(key)];
    if (sum <= room) continue;
    group.weight = std::max<uint64_t>(
        1, static_cast<uint64_t>(static_cast<double>(group.weight) /
                                 (static_cast<double>(sum) / static_cast<double>(room))));
  }
}

}  // namespace

ServiceEndpoint ToEndpoint(const ServiceInstance& instance) {
  ServiceEndpoint endpoint;
  endpoint.address = instance.address();
  endpoint.port = instance.port();
  endpoint.weight = instance.has_weight() ? instance.weight() : kDefaultWeight;
  endpoint.zone = instance.zone();
  const bool healthy = EffectiveStatus(instance) == registry::v1::HEALTH_STATUS_HEALTHY;
  endpoint.serving = healthy && endpoint.weight > 0;
  endpoint.usable = HostKindOf(instance.address()) != HostKind::kName;
  return endpoint;
}

uint32_t WeightStep(uint32_t weight) {
  // Step i begins at 2^(i/4), rounded up.
  static const std::vector<uint32_t>* const kSteps = [] {
    auto* steps = new std::vector<uint32_t>;
    for (int i = 0; i < kWeightSteps; ++i) {
      const double begin = std::pow(2.0, 16.0 * i / kWeightSteps);
      steps->push_back(static_cast<uint32_t>(std::ceil(begin - 1e-9)));
    }
    return steps;
  }();
  const auto above = std::upper_bound(kSteps->begin(), kSteps->end(), weight);
  return above == kSteps->begin() ? kSteps->front() : *(above - 1);
}

ClusterLoadAssignment BuildLoadAssignment(const std::string& cluster_name,
                                          const ServiceEndpoints& endpoints,
                                          const std::string& zone, bool zone_aware) {
  const std::vector<const ServiceEndpoint*> chosen = Choose(endpoints);
  std::map<std::string_view, std::set<uint32_t>> weights_of_zone;
  for (const ServiceEndpoint* endpoint : chosen) {
    std::set<uint32_t>& weights = weights_of_zone[endpoint->zone];
    if (weights.size() <= kWeightSteps) weights.insert(endpoint->weight);
  }
  std::map<GroupKey, Group> groups;
  const bool prefer_zone = zone_aware && !zone.empty();
  const bool any_in_zone = !prefer_zone || weights_of_zone.count(zone) > 0;
  for (const ServiceEndpoint* endpoint : chosen) {
    const bool first_choice = !any_in_zone || !prefer_zone || endpoint->zone == zone;
    const bool exact = weights_of_zone[endpoint->zone].size() <= kWeightSteps;
    Group& group = groups[{first_choice ? 0 : 1, endpoint->zone,
                           exact ? endpoint->weight : WeightStep(endpoint->weight)}];
    group.members.push_back(endpoint);
    group.weight += endpoint->weight;
  }
  FitWeights(&groups);

  ClusterLoadAssignment assignment;
  assignment.set_cluster_name(cluster_name);
  for (const auto& [key, group] : groups) {
    const auto& [priority, group_zone, weight] = key;
    LocalityLbEndpoints& locality = *assignment.add_endpoints();
    locality.mutable_locality()->set_zone(group_zone);
    locality.mutable_locality()->set_sub_zone(absl::StrCat("weight-", weight));
    locality.mutable_load_balancing_weight()->set_value(static_cast<uint32_t>(group.weight));
    locality.set_priority(priority);
    for (const ServiceEndpoint* member : group.members) {
      SocketAddress& address = *locality.add_lb_endpoints()
                                    ->mutable_endpoint()
                                    ->mutable_address()
                                    ->mutable_socket_address();
      address.set_address(member->address);
      address.set_port_value(member->port);
    }
  }
  return assignment;
}

}  // namespace failback::xds
