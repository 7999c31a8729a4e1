#include "agent/xds_status.h"

#include "registry/base/proto_time.h"

namespace failback {

agent::v1::XdsStatus XdsStatusOf(const xds::AdsService::Statistics& statistics) {
  agent::v1::XdsStatus status;
  status.set_streams(statistics.streams);
  status.set_services(statistics.cache.services);
  status.set_responses(statistics.responses);
  status.set_acknowledged(statistics.acks);
  status.set_refused(statistics.nacks);
  status.set_unusable_instances(statistics.cache.unusable_instances);
  if (statistics.last_nack.has_value()) {
    const xds::AdsService::Nack& nack = *statistics.last_nack;
    agent::v1::XdsStatus::Refusal& refusal = *status.mutable_last_refusal();
    *refusal.mutable_time() = ToProto(nack.time);
    refusal.set_node_id(nack.node_id);
    refusal.set_client(nack.user_agent);
    refusal.set_resource_type(xds::TypeName(nack.type));
    refusal.set_reason(nack.reason);
  }
  return status;
}

}  // namespace failback
