#include "agent/ctl/instance_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/config_file.h"
#include "yaml-cpp/yaml.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;

absl::Status Problem(const std::string& name, const YAML::Node& node, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(name, ":", node.Mark().line + 1, ": ", problem));
}

absl::StatusOr<std::vector<ServiceInstance>> ParseNode(const std::string& name,
                                                       const YAML::Node& root,
                                                       const std::string& default_namespace) {
  if (!root.IsSequence()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": expected a list of instances, as `failbackctl list -o yaml` prints it"));
  }
  std::vector<ServiceInstance> instances;
  instances.reserve(root.size());
  for (const YAML::Node& item : root) {
    const YAML::Node of_record = item.IsMap() ? item["instance"] : YAML::Node();
    const YAML::Node& node = of_record.IsDefined() && of_record.IsMap() ? of_record : item;
    ServiceInstance instance;
    const absl::Status status = ParseYamlNode(name, node, &instance);
    if (!status.ok()) return status;
    if (instance.key().service().empty()) return Problem(name, item, "key.service: is required");
    if (instance.key().instance_id().empty()) {
      return Problem(name, item, "key.instance_id: is required");
    }
    if (instance.key().namespace_().empty()) {
      instance.mutable_key()->set_namespace_(default_namespace);
    }
    instance.clear_instance_count();
    instance.clear_offline();
    instances.push_back(std::move(instance));
  }
  return instances;
}

}  // namespace

absl::StatusOr<std::vector<ServiceInstance>> ParseInstances(const std::string& name,
                                                            const std::string& text,
                                                            const std::string& default_namespace) {
  try {
    return ParseNode(name, YAML::Load(JoinSurrogates(text)), default_namespace);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ":", e.mark.line + 1, ": not YAML: ", e.msg));
  }
}

absl::StatusOr<std::vector<ServiceInstance>> ReadInstanceFile(
    const std::string& path, const std::string& default_namespace) {
  const bool is_stdin = path == "-";
  const absl::StatusOr<std::string> text = ReadWholeFile(is_stdin ? "/dev/stdin" : path);
  if (!text.ok()) return text.status();
  return ParseInstances(is_stdin ? "standard input" : path, *text, default_namespace);
}

}  // namespace failback
