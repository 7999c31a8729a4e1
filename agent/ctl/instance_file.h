// A file of instances, for `register -f` and `unregister -f`.
//
// YAML or JSON (which is YAML): a list of ServiceInstance, or of what `list -o yaml|json` prints,
// of which only the instance counts. Keys are the fields' names, as `instance_id` or `instanceId`.
//
//   - key: {service: orders, instance_id: orders-1}
//     address: 10.0.0.7
//     port: 8080
//     metadata: {version: 1.10}
//
// Thread safety: the functions are pure, but for the file.

#ifndef FAILBACK_AGENT_CTL_INSTANCE_FILE_H_
#define FAILBACK_AGENT_CTL_INSTANCE_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

// Reads `path`, or standard input for "-". Instances without namespace get `default_namespace`.
// INVALID_ARGUMENT names file, line and key, and what is allowed there.
absl::StatusOr<std::vector<registry::v1::ServiceInstance>> ReadInstanceFile(
    const std::string& path, const std::string& default_namespace);

// The same of the text of a file that errors call `name`.
absl::StatusOr<std::vector<registry::v1::ServiceInstance>> ParseInstances(
    const std::string& name, const std::string& text, const std::string& default_namespace);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_INSTANCE_FILE_H_
