// Where a client of another API shows its token. Clients of Consul have `X-Consul-Token` and
// `token=`, clients of Eureka the password of a URL; all may have `Authorization: Bearer`.
//
// Example:
//
//   const std::string bearer = BearerOf(request, TokenPlaces::kConsul);
//   if (!bearer.empty()) …  // in the place of the request's Authorization
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_DOOR_SHOWN_TOKEN_H_
#define FAILBACK_GATEWAY_DOOR_SHOWN_TOKEN_H_

#include <string>

#include "gateway/http/message.h"

namespace failback {

enum class TokenPlaces {
  kAuthorization,  // `Bearer`, or the password of `Basic`
  kConsul,         // before these: X-Consul-Token, then `?token=`
};

// The token of a request as the value of an Authorization header: "Bearer …". Of several the most
// explicit one: a proxy or a URL may add an Authorization that the client does not know of. Empty:
// there is none.
std::string BearerOf(const http::Request& request, TokenPlaces places);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_DOOR_SHOWN_TOKEN_H_
