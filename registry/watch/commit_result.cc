#include "registry/watch/commit_result.h"

#include "failback/registry/v1/registry.pb.h"

namespace failback {

Blob MakeServiceEntry(std::string_view service_key, int64_t instances) {
  if (instances <= 0) return Blob();
  const size_t end = service_key.find('\0');
  registry::v1::ServiceInstance entry;
  entry.mutable_key()->set_namespace_(std::string(service_key.substr(0, end)));
  entry.mutable_key()->set_service(std::string(service_key.substr(end + 1)));
  entry.set_instance_count(static_cast<uint64_t>(instances));
  return Blob(entry.SerializeAsString());
}

}  // namespace failback
