// Errors as problem documents (RFC 9457), with the reasons of this project.
//
//   {"type": "about:blank", "title": "Forbidden", "status": 403, "detail": "…",
//    "code": "PERMISSION_DENIED", "reason": "ACCESS_DENIED", "metadata": {}}
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_HTTP_PROBLEM_H_
#define FAILBACK_GATEWAY_HTTP_PROBLEM_H_

#include "absl/status/status.h"
#include "gateway/http/message.h"

namespace failback::http {

// With the HTTP status for what the client should do next: 409 for what another client holds, 413
// for what is too large, else by the code.
Response Problem(const absl::Status& status);
// With another one.
Response Problem(int http_status, const absl::Status& status);

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_PROBLEM_H_
