#include "agent/ctl/selector_flags.h"

namespace failback {

void SelectorFlags::AddTo(CLI::App* command) {
  AddNamespace(command, selector.mutable_namespace_());
  AddRepeated(command, "--zone", "ZONE", &zones, "only this zone; may be repeated");
  AddMetadata(command, &metadata, "only with this metadata; may be repeated");
  command->add_flag("--healthy", healthy, "only instances to be used now");
  AddUpstream(command, &upstream);
}

registry::v1::Selector SelectorFlags::ToProto() const {
  registry::v1::Selector result = selector;
  for (const std::string& zone : zones) result.add_zones(zone);
  for (const auto& [name, value] : metadata) (*result.mutable_metadata())[name] = value;
  if (healthy) result.add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  return result;
}

}  // namespace failback
