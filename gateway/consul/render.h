// What Consul's clients read: services, their health, nodes and checks as JSON.
//
// A node is a machine, and is called by its address: of instances nothing else is known about
// theirs. An instance has one check, `service:ID`, and a second one, `_service_maintenance:ID`,
// while an operator, or a client of Consul, has taken it out of rotation. Lists are sorted by the instances' ids, so that
// answers of different calls go together place by place. Indexes of single entries are not kept,
// and are 0.
//
// Example:
//
//   std::string json = HealthOfService(*view.instances, {"eu", {"canary"}, true});
//
// Thread safety: the functions are pure.

#ifndef FAILBACK_GATEWAY_CONSUL_RENDER_H_
#define FAILBACK_GATEWAY_CONSUL_RENDER_H_

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gateway/consul/definition.h"
#include "gateway/consul/mapping.h"
#include "gateway/markup/json_writer.h"
#include "registry/model/instance_set.h"

namespace failback::consul {

// Which instances are shown.
struct Shown {
  std::string datacenter;
  std::vector<std::string> tags = {};  // those that have all of them
  bool passing = false;                // those that are passing
  std::string node = {};               // those of this node; empty: of all
};

// `/v1/health/service/{service}`, `/v1/catalog/service/{service}`, `/v1/health/checks/{service}`.
std::string HealthOfService(const InstanceSet& instances, const Shown& shown);
std::string CatalogOfService(const InstanceSet& instances, const Shown& shown);
std::string ChecksOfService(const InstanceSet& instances, const Shown& shown);

// Of several services, one after the other: `/v1/health/state/{state}` and
// `/v1/health/node/{node}`. `wanted` says which checks.
using Sets = std::vector<const InstanceSet*>;
std::string ChecksOf(const Sets& services, const Shown& shown,
                     absl::FunctionRef<bool(CheckStatus)> wanted);

// `/v1/catalog/nodes`; `/v1/catalog/node/{node}`: null when no instance is on that node.
std::string Nodes(const Sets& services, const std::string& datacenter);
std::string ServicesOfNode(const Sets& services, const Shown& shown);

// `/v1/catalog/services`: names with all tags that their instances have.
using TagsOfServices = std::map<std::string, std::set<std::string>>;
std::set<std::string> TagsOf(const InstanceSet& instances);
std::string ServicesWithTags(const TagsOfServices& services);

// A service as an agent shows it: an entry of `/v1/agent/services`.
void WriteAgentService(const ServiceEntry& entry, const std::string& datacenter,
                       markup::JsonWriter* json);

// A check as an agent and a catalog show it.
struct CheckEntry {
  std::string_view node;
  std::string id;
  std::string_view name;
  CheckStatus status = CheckStatus::kPassing;
  std::string_view notes;
  std::string_view output;
  std::string_view kind;  // "ttl"
};
void WriteCheck(const CheckEntry& check, const ServiceEntry& service, markup::JsonWriter* json);

// The id that the check of a service has when its client names none; `number` from 0, of `count`.
std::string DefaultCheckId(std::string_view service_id, size_t number, size_t count);

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_RENDER_H_
