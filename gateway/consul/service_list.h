// The services of a namespace with their tags, as `catalog/services` has them, and a number that
// grows only when these change: clients that wait for a new service are not woken by the health of
// an old one.
//
// Tags are read again only of services that have changed.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_GATEWAY_CONSUL_SERVICE_LIST_H_
#define FAILBACK_GATEWAY_CONSUL_SERVICE_LIST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "gateway/catalog/catalog.h"
#include "gateway/consul/render.h"
#include "registry/model/instance_set.h"

namespace failback::consul {

class ServiceList {
 public:
  // `view` is known, and not older than the one before.
  void Update(const catalog::NamespaceView& view);

  uint64_t index() const { return index_; }
  const TagsOfServices& services() const { return services_; }

 private:
  uint64_t index_ = 0;
  uint64_t version_ = 0;
  TagsOfServices services_;
  std::map<std::string, std::shared_ptr<const InstanceSet>> read_;  // what the tags are of
};

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_SERVICE_LIST_H_
