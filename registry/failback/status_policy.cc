#include "registry/failback/status_policy.h"

#include "registry/model/errors.h"

namespace failback {

const char* OperationName(OperationKind kind) {
  switch (kind) {
    case OperationKind::kRegister:
      return "register";
    case OperationKind::kUnregister:
      return "unregister";
    case OperationKind::kSubscribe:
      return "subscribe";
    case OperationKind::kUnsubscribe:
      return "unsubscribe";
  }
  return "unknown";
}

NextStep DecideNextStep(OperationKind kind, const absl::Status& status) {
  if (status.ok()) return NextStep::kDone;
  switch (ReasonOf(status)) {
    case registry::v1::ERROR_REASON_SESSION_UNKNOWN:
    case registry::v1::ERROR_REASON_SESSION_NOT_OWNED:  // our name is another than it was
      return NextStep::kResync;
    case registry::v1::ERROR_REASON_SUPERSEDED:
      // No other client follows under our session and name: only our own numbers can have gone
      // back.
      return kind == OperationKind::kSubscribe || kind == OperationKind::kUnsubscribe
                 ? NextStep::kNewGeneration
                 : NextStep::kSuperseded;
    case registry::v1::ERROR_REASON_GENERATION_REUSED:
      return NextStep::kNewGeneration;
    case registry::v1::ERROR_REASON_INVALID_FIELD:
    case registry::v1::ERROR_REASON_TOO_LARGE:
    case registry::v1::ERROR_REASON_LIMIT_REACHED:
    case registry::v1::ERROR_REASON_ACCESS_DENIED:
      return NextStep::kPark;
    case registry::v1::ERROR_REASON_OVERLOADED:
    case registry::v1::ERROR_REASON_STORE_READ_ONLY:
    case registry::v1::ERROR_REASON_SHUTTING_DOWN:
    case registry::v1::ERROR_REASON_CREDENTIALS_NEEDED:  // the next attempt resolves them again
    case registry::v1::ERROR_REASON_DRAINING:            // an agent that restarts
    case registry::v1::ERROR_REASON_REPLACED:  // not by us: our older streams' ends are ignored
      return NextStep::kRetry;
    default:
      break;
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnauthenticated:  // the next attempt resolves its credentials again
      return NextStep::kRetry;
    case absl::StatusCode::kResourceExhausted:
      return RetryDelayOf(status).has_value() ? NextStep::kRetry : NextStep::kPark;
    case absl::StatusCode::kNotFound:
      return kind == OperationKind::kUnregister || kind == OperationKind::kUnsubscribe
                 ? NextStep::kDone
                 : NextStep::kPark;
    default:
      return NextStep::kPark;
  }
}

NextStep DecideUnsent(OperationKind kind, const absl::Status& status) {
  return DecideNextStep(kind, status) == NextStep::kRetry ? NextStep::kRetry : NextStep::kPark;
}

bool IsAboutContent(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kOutOfRange ||
         (status.code() == absl::StatusCode::kResourceExhausted &&
          !RetryDelayOf(status).has_value());
}

bool IsConnectionFailure(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable &&
         ReasonOf(status) != registry::v1::ERROR_REASON_STORE_READ_ONLY &&
         ReasonOf(status) != registry::v1::ERROR_REASON_IDLE;
}

bool IsDeniedUpstream(const absl::Status& status) {
  return ReasonOf(status) == registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE &&
         ReasonMetadata(status, kUpstreamCode) ==
             absl::StatusCodeToString(absl::StatusCode::kPermissionDenied);
}

bool IsTooLargeToReceive(const absl::Status& status) {
  return status.code() == absl::StatusCode::kResourceExhausted &&
         ReasonOf(status) == registry::v1::ERROR_REASON_UNSPECIFIED &&
         !RetryDelayOf(status).has_value();
}

bool MayHaveLanded(const absl::Status& status) {
  const ErrorReason reason = ReasonOf(status);
  if (reason != registry::v1::ERROR_REASON_UNSPECIFIED &&
      reason != registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE) {
    return false;
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return true;
    default:
      return false;
  }
}

}  // namespace failback
