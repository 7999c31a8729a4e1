// What an operator asks of a list of instances or services: filters, order, pages. Pure.

#ifndef FAILBACK_REGISTRY_MODEL_INSTANCE_QUERY_H_
#define FAILBACK_REGISTRY_MODEL_INSTANCE_QUERY_H_

#include <vector>

#include "absl/status/statusor.h"
#include "failback/admin/v1/admin.pb.h"
#include "registry/model/messages.h"

namespace failback {

// An operator's mark before the owner's word.
admin::v1::InstanceState StateOf(const ServiceInstance& instance);

// What speaks against it first: at an agent that its registries do not have it, then the mark, then
// that its session is held, then the owner's word.
admin::v1::InstanceState StateOf(const InstanceRecord& record);

// One more, or one less, with `by` -1.
void Count(admin::v1::InstanceState state, bool persistent, int by,
           admin::v1::InstanceCounts* counts);

// Adds the counts of a part to those of the whole.
void Add(const admin::v1::InstanceCounts& part, admin::v1::InstanceCounts* whole);

// INVALID_ARGUMENT names the field. `records` are those of one service, in any order; they are
// moved from.
absl::StatusOr<admin::v1::ListInstancesResponse> QueryInstances(
    const admin::v1::ListInstancesRequest& request, std::vector<InstanceRecord> records);

// Likewise. `services` are sorted by namespace and name.
absl::StatusOr<admin::v1::ListServicesResponse> QueryServices(
    const admin::v1::ListServicesRequest& request, std::vector<admin::v1::ServiceSummary> services);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_INSTANCE_QUERY_H_
