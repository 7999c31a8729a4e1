// Whether an update changed what an instance's owner says of its health. Pure.

#ifndef FAILBACK_REGISTRY_MODEL_HEALTH_CHANGE_H_
#define FAILBACK_REGISTRY_MODEL_HEALTH_CHANGE_H_

#include "failback/admin/v1/admin.pb.h"

namespace failback {

// An update after which the owner says something else of its health says so; if it says nothing
// else it is that and no update.
void SetHealthChange(registry::v1::ServiceInstance before, registry::v1::ServiceInstance after,
                     admin::v1::InstanceChange* change);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_HEALTH_CHANGE_H_
