#include "registry/model/health_change.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;

std::string HealthName(const ServiceInstance& instance) {
  switch (instance.status()) {
    case registry::v1::HEALTH_STATUS_UNHEALTHY:
      return "unhealthy";
    case registry::v1::HEALTH_STATUS_DRAINING:
      return "draining";
    default:
      return "healthy";
  }
}

}  // namespace

void SetHealthChange(ServiceInstance before, ServiceInstance after,
                     admin::v1::InstanceChange* change) {
  const std::string was = HealthName(before), is = HealthName(after);
  if (was == is) return;
  change->set_detail(absl::StrCat(was, " → ", is));
  before.clear_status();
  after.clear_status();
  if (CanonicalRegistration(before) == CanonicalRegistration(after)) {
    change->set_kind(admin::v1::CHANGE_KIND_HEALTH);
  }
}

}  // namespace failback
