// How the discovery server is, for AgentService.

#ifndef FAILBACK_AGENT_XDS_STATUS_H_
#define FAILBACK_AGENT_XDS_STATUS_H_

#include "failback/agent/v1/agent.pb.h"
#include "gateway/xds/ads_service.h"

namespace failback {

agent::v1::XdsStatus XdsStatusOf(const xds::AdsService::Statistics& statistics);

}  // namespace failback

#endif  // FAILBACK_AGENT_XDS_STATUS_H_
