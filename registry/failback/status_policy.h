// What the failback core does after an attempt, decided by its status in one place.
//
// The table is that of docs/protocol.md ("Refusals") and docs/design.md (failure matrix): a reason
// decides where there is one, the code otherwise.
//
// Thread safety: pure.

#ifndef FAILBACK_REGISTRY_FAILBACK_STATUS_POLICY_H_
#define FAILBACK_REGISTRY_FAILBACK_STATUS_POLICY_H_

#include "absl/status/status.h"

namespace failback {

// The four kinds of operation.
enum class OperationKind { kRegister, kUnregister, kSubscribe, kUnsubscribe };

// `register`, `unregister`, `subscribe`, `unsubscribe`.
const char* OperationName(OperationKind kind);

enum class NextStep {
  kDone,    // the registry is as intended
  kRetry,   // back on the wheel
  kPark,    // the same request will never pass: keep it, show it, do not repeat it
  kResync,  // the session is lost: open one, send everything again
  // A newer intent holds the key, or held it until lately: a deregistration is done, a registration
  // waits.
  kSuperseded,
  kNewGeneration,  // take a higher generation, send again
};

NextStep DecideNextStep(OperationKind kind, const absl::Status& status);

// The same for an intent that was not sent, because the registry could not be reached with
// `status`: tried again, or parked until it can. Never anything that only an answer can show.
NextStep DecideUnsent(OperationKind kind, const absl::Status& status);

// The status may be due to one item of a batch that failed as a whole: the others deserve a call of
// their own.
bool IsAboutContent(const absl::Status& status);

// The status says that the registry cannot be reached, as opposed to a refusal by a registry that
// can: probe the connection before anything else is sent.
bool IsConnectionFailure(const absl::Status& status);

// In the metadata of UPSTREAM_UNAVAILABLE, the answer to a List: the code with which the registry
// ended it.
inline constexpr char kUpstreamCode[] = "upstream_code";

// An agent's answer to a List that its registry denied to the agent: asking again changes nothing.
bool IsDeniedUpstream(const absl::Status& status);

// A message of the stream is larger than gRPC takes here, or so it seems: the status is gRPC's own.
bool IsTooLargeToReceive(const absl::Status& status);

// The attempt may have reached the registry all the same.
bool MayHaveLanded(const absl::Status& status);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_STATUS_POLICY_H_
