// What goes over a discovery stream: resources, encoded once and shared by all who get them.
//
// A service NAME is four resources of that name: a Listener whose routes, inline, send everything
// to the Cluster; the same routes as a RouteConfiguration, for who asks; the Cluster, round robin
// over endpoints that are discovered; and the ClusterLoadAssignment with the endpoints. The first
// three say nothing but the name and never change.
//
// Thread safety: pure; a Resource is immutable.

#ifndef FAILBACK_GATEWAY_XDS_RESOURCES_H_
#define FAILBACK_GATEWAY_XDS_RESOURCES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "failback/xds/endpoint.pb.h"

namespace failback::xds {

// In the order in which responses are sent: what is named before what names it.
enum class ResourceType { kCluster, kEndpoints, kListener, kRoute };
inline constexpr std::array<ResourceType, 4> kResourceTypes = {
    ResourceType::kCluster, ResourceType::kEndpoints, ResourceType::kListener,
    ResourceType::kRoute};

// As `type.googleapis.com/envoy.config.cluster.v3.Cluster`.
const std::string& TypeUrl(ResourceType type);
std::optional<ResourceType> TypeOfUrl(const std::string& type_url);
// As `Cluster`, for people.
const char* TypeName(ResourceType type);

// A response of this type has all that the stream subscribes to, and what it lacks is gone.
inline bool IsWholeState(ResourceType type) {
  return type == ResourceType::kCluster || type == ResourceType::kListener;
}

struct Resource {
  // Grows with each change of any resource of this process.
  uint64_t version = 0;
  // The field `resources` of a DiscoveryResponse with this one in it, tag and length included.
  std::string encoded;
};
using ResourcePtr = std::shared_ptr<const Resource>;

// Of the types that never change.
std::string EncodeListener(const std::string& name);
std::string EncodeRoute(const std::string& name);
std::string EncodeCluster(const std::string& name);
std::string EncodeEndpoints(const envoy::config::endpoint::v3::ClusterLoadAssignment& assignment);

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_RESOURCES_H_
