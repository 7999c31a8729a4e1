// Instances as tests register them.

#ifndef FAILBACK_TESTS_UTIL_INSTANCES_H_
#define FAILBACK_TESTS_UTIL_INSTANCES_H_

#include <cstdint>
#include <string>

#include "failback/registry/v1/registry.pb.h"

namespace failback {

// Of any service, in the namespace that an empty name means.
inline registry::v1::ServiceInstance MakeInstance(const std::string& service, const std::string& id,
                                                  uint32_t port = 80) {
  registry::v1::ServiceInstance instance;
  instance.mutable_key()->set_service(service);
  instance.mutable_key()->set_instance_id(id);
  instance.set_address("10.0.0.1");
  instance.set_port(port);
  return instance;
}

// Of `orders`, canonical: with the namespace named.
inline registry::v1::ServiceInstance MakeInstance(const std::string& id, uint32_t port = 8080,
                                                  const std::string& service = "orders") {
  registry::v1::ServiceInstance instance = MakeInstance(service, id, port);
  instance.mutable_key()->set_namespace_("default");
  return instance;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_INSTANCES_H_
