#include "gateway/xds/resources.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "failback/xds/cluster.pb.h"
#include "failback/xds/discovery.pb.h"
#include "failback/xds/http_connection_manager.pb.h"
#include "failback/xds/listener.pb.h"
#include "failback/xds/route.pb.h"
#include "failback/xds/router.pb.h"

namespace failback::xds {
namespace {

using envoy::config::cluster::v3::Cluster;
using envoy::config::endpoint::v3::ClusterLoadAssignment;
using envoy::config::listener::v3::Listener;
using envoy::config::route::v3::RouteConfiguration;
using envoy::config::route::v3::VirtualHost;
using envoy::extensions::filters::http::router::v3::Router;
using envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
using envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
using envoy::service::discovery::v3::DiscoveryResponse;

// Of ConfigSource.
constexpr uint32_t kV3 = 2;

template <typename Message>
std::string UrlOf() {
  return absl::StrCat("type.googleapis.com/", Message::descriptor()->full_name());
}

template <typename Message>
std::string Encode(const Message& message) {
  DiscoveryResponse response;
  response.add_resources()->PackFrom(message);
  return response.SerializeAsString();
}

RouteConfiguration MakeRoute(const std::string& name) {
  RouteConfiguration route;
  route.set_name(name);
  VirtualHost& host = *route.add_virtual_hosts();
  host.set_name(name);
  host.add_domains("*");
  auto& rule = *host.add_routes();
  rule.mutable_match()->set_prefix("");
  rule.mutable_route()->set_cluster(name);
  return route;
}

}  // namespace

const std::string& TypeUrl(ResourceType type) {
  static const auto* const kUrls =
      new std::array<std::string, 4>{UrlOf<Cluster>(), UrlOf<ClusterLoadAssignment>(),
                                     UrlOf<Listener>(), UrlOf<RouteConfiguration>()};
  return (*kUrls)[static_cast<size_t>(type)];
}

std::optional<ResourceType> TypeOfUrl(const std::string& type_url) {
  for (const ResourceType type : kResourceTypes) {
    if (TypeUrl(type) == type_url) return type;
  }
  return std::nullopt;
}

const char* TypeName(ResourceType type) {
  switch (type) {
    case ResourceType::kCluster:
      return "Cluster";
    case ResourceType::kEndpoints:
      return "ClusterLoadAssignment";
    case ResourceType::kListener:
      return "Listener";
    case ResourceType::kRoute:
      return "RouteConfiguration";
  }
  return "";
}

std::string EncodeListener(const std::string& name) {
  HttpConnectionManager manager;
  *manager.mutable_route_config() = MakeRoute(name);
  HttpFilter& router = *manager.add_http_filters();
  router.set_name("router");
  router.mutable_typed_config()->PackFrom(Router());
  Listener listener;
  listener.set_name(name);
  listener.mutable_api_listener()->mutable_api_listener()->PackFrom(manager);
  return Encode(listener);
}

std::string EncodeRoute(const std::string& name) { return Encode(MakeRoute(name)); }

std::string EncodeCluster(const std::string& name) {
  Cluster cluster;
  cluster.set_name(name);
  cluster.set_type(Cluster::EDS);
  Cluster::EdsClusterConfig& eds = *cluster.mutable_eds_cluster_config();
  eds.mutable_eds_config()->mutable_ads();
  eds.mutable_eds_config()->set_resource_api_version(kV3);
  eds.set_service_name(name);
  // Not ours to limit: without this a client stops at 1,024 calls.
  cluster.mutable_circuit_breakers()->add_thresholds()->mutable_max_requests()->set_value(
      std::numeric_limits<uint32_t>::max());
  return Encode(cluster);
}

std::string EncodeEndpoints(const ClusterLoadAssignment& assignment) { return Encode(assignment); }

}  // namespace failback::xds
