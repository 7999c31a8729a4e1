#include "registry/model/selector.h"

#include <algorithm>
#include <set>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using registry::v1::HealthStatus;

HealthStatus Explicit(HealthStatus status) {
  return status == registry::v1::HEALTH_STATUS_UNSPECIFIED ? registry::v1::HEALTH_STATUS_HEALTHY
                                                           : status;
}

const std::string& Explicit(const std::string& name_space) {
  static const std::string* const kDefault = new std::string(kDefaultNamespace);
  return name_space.empty() ? *kDefault : name_space;
}

}  // namespace

HealthStatus EffectiveStatus(const ServiceInstance& instance) {
  return instance.has_offline() ? registry::v1::HEALTH_STATUS_UNHEALTHY
                                : Explicit(instance.status());
}

bool SelectorMatches(const Selector& selector, const ServiceInstance& instance) {
  if (Explicit(selector.namespace_()) != Explicit(instance.key().namespace_())) return false;
  if (!selector.service().empty() && selector.service() != instance.key().service()) return false;
  if (!selector.statuses().empty() &&
      std::none_of(selector.statuses().begin(), selector.statuses().end(), [&](int status) {
        return Explicit(static_cast<HealthStatus>(status)) == EffectiveStatus(instance);
      })) {
    return false;
  }
  if (!selector.zones().empty() && std::find(selector.zones().begin(), selector.zones().end(),
                                             instance.zone()) == selector.zones().end()) {
    return false;
  }
  return std::all_of(selector.metadata().begin(), selector.metadata().end(),
                     [&](const auto& entry) {
                       const auto it = instance.metadata().find(entry.first);
                       return it != instance.metadata().end() && it->second == entry.second;
                     });
}

bool HasFilter(const Selector& selector) {
  return selector.statuses_size() > 0 || selector.zones_size() > 0 || !selector.metadata().empty();
}

std::string CanonicalSelector(const Selector& selector) {
  Selector canonical = selector;
  canonical.set_namespace_(Explicit(selector.namespace_()));
  std::set<int> statuses;
  for (const int status : selector.statuses()) {
    statuses.insert(Explicit(static_cast<HealthStatus>(status)));
  }
  canonical.clear_statuses();
  for (const int status : statuses) canonical.add_statuses(static_cast<HealthStatus>(status));
  const std::set<std::string> zones(selector.zones().begin(), selector.zones().end());
  canonical.clear_zones();
  for (const std::string& zone : zones) canonical.add_zones(zone);
  std::string out;
  {
    google::protobuf::io::StringOutputStream stream(&out);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    canonical.SerializeToCodedStream(&coded);
  }
  return out;
}

}  // namespace failback
