#include "gateway/consul/service_list.h"

#include <algorithm>
#include <utility>

namespace failback::consul {

void ServiceList::Update(const catalog::NamespaceView& view) {
  if (view.version <= version_) return;
  version_ = view.version;
  TagsOfServices services;
  std::map<std::string, std::shared_ptr<const InstanceSet>> read;
  for (const auto& service : *view.services) {
    const auto before = read_.find(service.name);
    const bool same = before != read_.end() && before->second == service.instances;
    services[service.name] = same ? services_[service.name] : TagsOf(*service.instances);
    read[service.name] = service.instances;
  }
  if (index_ == 0 || services != services_) index_ = std::max(index_ + 1, view.index);
  services_ = std::move(services);
  read_ = std::move(read);
}

}  // namespace failback::consul
