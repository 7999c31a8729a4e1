// `/openapi.json`: what the JSON door takes and answers, generated from the protos (OpenAPI 3.0).
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_JSON_OPENAPI_H_
#define FAILBACK_GATEWAY_JSON_OPENAPI_H_

#include <string>

namespace failback {

std::string OpenApiDocument();

}  // namespace failback

#endif  // FAILBACK_GATEWAY_JSON_OPENAPI_H_
