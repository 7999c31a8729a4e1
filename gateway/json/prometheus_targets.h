// `GET /v1/prometheus`: instances as Prometheus' http_sd takes them.
//
//   [{"targets": ["10.0.0.7:8080"], "labels": {"__meta_failback_service": "orders", …}}]
//
// All instances that the caller may read, of the namespace (`?namespace=`), or of the services that
// `?service=` names, once for each. Also unhealthy ones: what is ill is to be scraped too; the label
// `__meta_failback_status` tells. What an operator took offline has `offline` there.
//
// Thread safety: all functions from any thread.

#ifndef FAILBACK_GATEWAY_JSON_PROMETHEUS_TARGETS_H_
#define FAILBACK_GATEWAY_JSON_PROMETHEUS_TARGETS_H_

#include <memory>
#include <string>

#include "failback/registry/v1/registry.pb.h"
#include "gateway/http/responder.h"
#include "gateway/json/json_door.h"

namespace failback {

void AnswerPrometheus(const std::shared_ptr<const JsonDoor::Sources>& sources,
                      const http::Request& request, http::Responder responder);

// The element of one instance.
std::string TargetJson(const registry::v1::ServiceInstance& instance);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_JSON_PROMETHEUS_TARGETS_H_
