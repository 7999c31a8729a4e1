// How an instance of the registry and a service of Consul are each other.
//
//   Consul                    instance
//   Service, Name             key.service
//   Datacenter                key.namespace
//   ServiceID, ID             key.instance_id
//   Address, Port             address, port
//   Node, its Address         address: the machine that an instance is on
//   Tags                      metadata `tags`, with commas between them; a comma in a tag is `%2C`. What
//                             is too long for one entry goes on in `tags.2`, `tags.3`, …
//   Meta                      the other metadata, but entries whose keys begin with `consul.`
//   Weights.Passing           weight; 100 if it has none
//   Locality.Zone             zone
//   passing                   healthy
//   warning                   healthy, with metadata `consul.status: warning`
//   critical                  unhealthy; draining; offline by an operator's mark
//   maintenance               draining, with metadata `consul.maintenance`: how its checks are
//
// Example:
//
//   absl::StatusOr<ServiceInstance> instance = ToInstance(*service, "default", "10.0.0.7", status);
//   if (!instance.ok()) return Refuse(instance.status());     // Tags[3]: is longer than …
//
// Thread safety: plain values; the functions are pure.

#ifndef FAILBACK_GATEWAY_CONSUL_MAPPING_H_
#define FAILBACK_GATEWAY_CONSUL_MAPPING_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/consul/definition.h"
#include "registry/model/instance_view.h"
#include "registry/model/messages.h"

namespace failback::consul {

// Of what this door keeps in the metadata.
inline constexpr char kOwnMetadata[] = "consul.";

// INVALID_ARGUMENT names the field as the client calls it. `own_address` is for a service without
// an address; empty: it has to have one.
absl::StatusOr<ServiceInstance> ToInstance(const ServiceDefinition& service,
                                           const std::string& name_space,
                                           const std::string& own_address, CheckStatus status);

// Sets what a check says of an instance that was made by ToInstance.
void SetStatus(CheckStatus status, ServiceInstance* instance);

// The same while it is out of rotation: draining, whatever its checks say.
void SetMaintenance(CheckStatus status, ServiceInstance* instance);

// A service as Consul shows it. Refers to what it was made of, but for its tags.
struct ServiceEntry {
  explicit ServiceEntry(const InstanceView& instance);

  bool HasTag(std::string_view tag) const;

  std::string_view service;
  std::string_view id;
  std::string_view address;
  uint32_t port = 0;
  uint32_t weight = 100;
  std::string_view zone;
  CheckStatus status = CheckStatus::kPassing;        // as a whole
  CheckStatus check_status = CheckStatus::kPassing;  // without its maintenance
  bool draining = false;
  bool offline = false;      // by an operator's mark
  bool maintenance = false;  // that a client of Consul has asked for
  std::vector<std::string> tags;
  std::vector<InstanceView::Entry> meta;
};

// Tags as metadata has them, in as many values as they need; INVALID_ARGUMENT for one that no value
// can hold. And back.
absl::StatusOr<std::vector<std::string>> EncodeTags(const std::vector<std::string>& tags);
void DecodeTags(std::string_view value, std::vector<std::string>* tags);

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_MAPPING_H_
