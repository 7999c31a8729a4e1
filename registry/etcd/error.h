// What etcd's refusals mean to us.
//
// The one place that decides by a message's text: etcd distinguishes most of its errors by the text
// of the gRPC status alone. The texts are part of its API (rpctypes/error.go), and its own
// clients match them too. That happens here and nowhere else; the rest of the code asks ErrorOf.
//
//   etcd says                          becomes                                the caller
//   no leader, leader changed,         UNAVAILABLE                            tries again
//     timed out, member stopped
//   too many requests                  RESOURCE_EXHAUSTED, OVERLOADED, delay  waits
//   database space exceeded            UNAVAILABLE, STORE_READ_ONLY, delay    waits; reads go on
//   invalid auth token,                UNAUTHENTICATED                        takes a new token
//     old auth revision
//   wrong user or password, none given UNAUTHENTICATED                        tries again
//   authentication is not enabled      FAILED_PRECONDITION                    goes on without one
//   permission denied                  PERMISSION_DENIED                      parks the intent
//   request is too large               INVALID_ARGUMENT, TOO_LARGE            parks the intent
//   lease not found                    NOT_FOUND                              has lost the session
//   compacted                          OUT_OF_RANGE                           reads again
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_ETCD_ERROR_H_
#define FAILBACK_REGISTRY_ETCD_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace failback {
namespace etcd {

enum class Error {
  kNone,  // not one of etcd's own
  kUnavailable,
  kTooManyRequests,
  kNoSpace,
  kInvalidToken,
  kAuthFailed,
  kAuthNotEnabled,
  kPermissionDenied,
  kTooLarge,
  kLeaseNotFound,
  kCompacted,
};

// With the codes and details of the table above; other errors as registry/model/errors.h converts
// them.
absl::Status FromEtcd(const grpc::Status& status);

// The same for the reason of a watch that etcd has cancelled.
absl::Status FromEtcdText(const std::string& text);

// Which of etcd's errors a status made by FromEtcd is.
Error ErrorOf(const absl::Status& status);

// The same call may pass in a moment, at this member or at another.
bool IsTransient(const absl::Status& status);

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_ERROR_H_
