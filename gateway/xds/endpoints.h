// From the instances of a service to the ClusterLoadAssignment that its clients get.
//
// gRPC's round robin ignores the weights of endpoints and honours those of localities, so weights
// are sent as localities: the usable instances of one zone and one weight are one locality, whose
// weight is the sum of theirs, and within it calls go round. In a zone with more than 64 different
// weights neighbours share a locality, by a grid of 64 steps of 19 % from 1 to 65,535, so that ten
// thousand instances are 64 localities even if every one has a weight of its own; the locality
// still has the exact sum of its members, who share it evenly. The grid is fixed: an instance that
// comes or goes moves no other.
//
// Left out are instances that are not to get new calls (UNHEALTHY, DRAINING, weight zero), that
// have a host name for an address (gRPC refuses the whole service for one), and the later ones of
// several with the same address and port.
//
// With zone_aware, the instances of the client's zone have priority 0 and the others 1: gRPC uses
// the others while none of the zone can be reached. If the zone has none, the others are priority
// 0, as priorities must leave none out.
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_XDS_ENDPOINTS_H_
#define FAILBACK_GATEWAY_XDS_ENDPOINTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "failback/xds/endpoint.pb.h"
#include "registry/registry.h"

namespace failback::xds {

// What of a ServiceInstance matters here.
struct ServiceEndpoint {
  std::string address;
  uint32_t port = 0;
  uint32_t weight = 0;
  std::string zone;
  // To get new calls.
  bool serving = false;
  // Whether the address is one that a client can use: an IP address.
  bool usable = false;

  friend bool operator==(const ServiceEndpoint& a, const ServiceEndpoint& b) {
    return a.address == b.address && a.port == b.port && a.weight == b.weight && a.zone == b.zone &&
           a.serving == b.serving && a.usable == b.usable;
  }
};

ServiceEndpoint ToEndpoint(const ServiceInstance& instance);

// By canonical key, so that the same instances give the same bytes.
using ServiceEndpoints = std::map<std::string, ServiceEndpoint>;

// The lowest weight of the grid's step that `weight` (1 to 65535) is in.
uint32_t WeightStep(uint32_t weight);

// `zone` is the client's; empty, or with `zone_aware` false, it does not matter.
envoy::config::endpoint::v3::ClusterLoadAssignment BuildLoadAssignment(
    const std::string& cluster_name, const ServiceEndpoints& endpoints, const std::string& zone,
    bool zone_aware);

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_ENDPOINTS_H_
