#include "agent/ctl/instance_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/config_file.h"
#include "daemon/yaml_document.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;

absl::Status Problem(const std::string& name, const YamlNode& node, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(name, ":", node.line(), ": ", problem));
}

// The instance of a record that `list` has printed, or the node itself.
YamlNode InstanceIn(const YamlNode& item) {
  for (size_t i = 0; item.is_map() && i < item.size(); ++i) {
    if (item.key(i).is_text() && item.key(i).text() == "instance" && item.value(i).is_map()) {
      return item.value(i);
    }
  }
  return item;
}

absl::StatusOr<std::vector<ServiceInstance>> ParseNode(const std::string& name,
                                                       const YamlNode& root,
                                                       const std::string& default_namespace) {
  if (!root.is_list()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": expected a list of instances, as `failbackctl list -o yaml` prints it"));
  }
  std::vector<ServiceInstance> instances;
  instances.reserve(root.size());
  for (size_t i = 0; i < root.size(); ++i) {
    const YamlNode item = root.item(i);
    ServiceInstance instance;
    const absl::Status status = ParseYamlNode(name, InstanceIn(item), &instance);
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
  const absl::StatusOr<YamlDocument> document = YamlDocument::Parse(name, JoinSurrogates(text));
  if (!document.ok()) return document.status();
  return ParseNode(name, document->root(), default_namespace);
}

absl::StatusOr<std::vector<ServiceInstance>> ReadInstanceFile(
    const std::string& path, const std::string& default_namespace) {
  const bool is_stdin = path == "-";
  const absl::StatusOr<std::string> text = ReadWholeFile(is_stdin ? "/dev/stdin" : path);
  if (!text.ok()) return text.status();
  return ParseInstances(is_stdin ? "standard input" : path, *text, default_namespace);
}

}  // namespace failback
