// What the paths of the JSON door read of a request's query. Pure.

#ifndef FAILBACK_GATEWAY_JSON_PARAMETERS_H_
#define FAILBACK_GATEWAY_JSON_PARAMETERS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "gateway/http/message.h"
#include "gateway/json/service_json.h"

namespace failback {

// `?name=30s`; `otherwise` when there is none. INVALID_ARGUMENT names the parameter, and what is
// allowed: from `least` to `most`.
absl::StatusOr<absl::Duration> ReadDuration(const http::Request& request, const std::string& name,
                                            absl::Duration otherwise, absl::Duration least,
                                            absl::Duration most);

// `?epoch=…&revision=…`, both or none; or, where `header` is, what Last-Event-ID or
// `?last_event_id=` has: "EPOCH.REVISION".
absl::StatusOr<std::optional<StatePosition>> ReadPosition(const http::Request& request,
                                                          bool header);

// `?wait_for=acknowledged`, or `accepted`; unspecified when there is none.
absl::StatusOr<registry::v1::IntentState> ReadWaitFor(const http::Request& request);

// Parameters that are none of `known`: a typing error must not pass unnoticed.
absl::Status CheckParameters(const http::Request& request,
                             std::initializer_list<const char*> known);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_JSON_PARAMETERS_H_
