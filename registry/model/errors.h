// Typed errors: an absl::Status that carries what a program needs to know.
//
// A refusal has a code (what to do next, coarsely), a reason (an ErrorReason, exactly) and a
// message for a person. Reason and retry delay travel as google.rpc.ErrorInfo and RetryInfo,
// in an absl::Status as payloads, on the wire in `grpc-status-details-bin`, and in a batch in
// failback.rpc.v1.Status. The functions here convert between the three without loss.
//
// No code decides by a message's text, with one exception: most of etcd's errors differ in nothing
// else, and registry/etcd/error.cc turns their texts into codes and reasons.
//
// Example: what a caller does with a refusal.
//
//   if (ReasonOf(status) == registry::v1::ERROR_REASON_SESSION_UNKNOWN) return OpenSession();
//   if (std::optional<absl::Duration> delay = RetryDelayOf(status)) return TryAgainIn(*delay);
//   return Fail(status);
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_ERRORS_H_
#define FAILBACK_REGISTRY_MODEL_ERRORS_H_

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "failback/rpc/v1/status.pb.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace failback {

using registry::v1::ErrorReason;

inline constexpr char kErrorDomain[] = "failback.dev";

// A refusal with the code that belongs to `reason` (see ErrorReason). `metadata` holds what the
// reason's comment lists.
absl::Status Refusal(ErrorReason reason, const std::string& message,
                     const std::map<std::string, std::string>& metadata = {});

// INVALID_ARGUMENT / INVALID_FIELD for one field. The message reads "field: description", as
// "registrations[0].instance.port: 70000 is not in 1..65535".
absl::Status InvalidField(const std::string& field, const std::string& description);

// SESSION_UNKNOWN.
absl::Status SessionUnknown();

// PERMISSION_DENIED / SESSION_NOT_OWNED. It does not say whose session it is.
absl::Status SessionNotOwned();

// `status` with a RetryInfo: the peer waits at least `delay` before it tries again.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);

// The reason in `status`, or ERROR_REASON_UNSPECIFIED when there is none (plain gRPC errors).
ErrorReason ReasonOf(const absl::Status& status);

// The same as people read it, as `STORE_READ_ONLY`; empty when there is none.
std::string ReasonText(const absl::Status& status);

// All of the reason's metadata.
std::map<std::string, std::string> ReasonMetadata(const absl::Status& status);
// An entry of it, or nullopt.
std::optional<std::string> ReasonMetadata(const absl::Status& status, const std::string& key);

// The code and the reason of a status, for who may not see its words: these may name hosts, paths
// and others' services.
absl::Status WithoutWords(const absl::Status& status);

// The delay that the peer asked for, if it did and it is positive.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

rpc::v1::Status StatusToProto(const absl::Status& status);
absl::Status StatusFromProto(const rpc::v1::Status& status);

grpc::Status StatusToGrpc(const absl::Status& status);
absl::Status StatusFromGrpc(const grpc::Status& status);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_ERRORS_H_
