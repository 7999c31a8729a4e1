#include "registry/etcd/error.h"

#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback {
namespace etcd {
namespace {

constexpr char kPayload[] = "failback.dev/etcd.error";
constexpr absl::Duration kNoSpaceDelay = absl::Seconds(1);
constexpr absl::Duration kTooManyDelay = absl::Milliseconds(200);

struct Text {
  std::string_view text;
  Error error;
};

constexpr std::string_view kNoUser = "etcdserver: user name is empty";

// As in rpctypes/error.go of etcd 3.4, to which later versions have only added.
constexpr Text kTexts[] = {
    {"etcdserver: no leader", Error::kUnavailable},
    {"etcdserver: not leader", Error::kUnavailable},
    {"etcdserver: leader changed", Error::kUnavailable},
    {"etcdserver: server stopped", Error::kUnavailable},
    {"etcdserver: request timed out", Error::kUnavailable},
    {"etcdserver: request timed out, possibly due to previous leader failure", Error::kUnavailable},
    {"etcdserver: request timed out, possibly due to connection lost", Error::kUnavailable},
    {"etcdserver: request timed out, waiting for the applied index took too long",
     Error::kUnavailable},
    {"etcdserver: unhealthy cluster", Error::kUnavailable},
    {"etcdserver: too many requests", Error::kTooManyRequests},
    {"etcdserver: mvcc: database space exceeded", Error::kNoSpace},
    {"etcdserver: invalid auth token", Error::kInvalidToken},
    {"etcdserver: revision of auth store is old", Error::kInvalidToken},
    {"etcdserver: authentication failed, invalid user ID or password", Error::kAuthFailed},
    {kNoUser, Error::kAuthFailed},
    {"etcdserver: user name not found", Error::kAuthFailed},
    {"etcdserver: authentication is not enabled", Error::kAuthNotEnabled},
    {"etcdserver: permission denied", Error::kPermissionDenied},
    {"etcdserver: request is too large", Error::kTooLarge},
    {"etcdserver: requested lease not found", Error::kLeaseNotFound},
    {"etcdserver: mvcc: required revision has been compacted", Error::kCompacted},
};

Error Find(std::string_view text) {
  for (const Text& entry : kTexts) {
    if (entry.text == text) return entry.error;
  }
  return Error::kNone;
}

// What to do about it, for the person who runs the registry or the agent.
const char* HintOf(Error error, std::string_view text) {
  switch (error) {
    case Error::kNoSpace:
      return ": compact, defragment, then etcdctl alarm disarm";
    case Error::kAuthFailed:
      return text == kNoUser ? ": authentication is on: name user and password_file in the "
                               "store's URI (etcd://HOSTS?user=U&password_file=F)"
                             : ": see user and password_file in the store's URI";
    case Error::kPermissionDenied:
      return ": the user's role needs readwrite on all keys below the URI's prefix";
    default:
      return "";
  }
}

absl::Status Make(Error error, const std::string& text) {
  const std::string message = absl::StrCat("etcd: ", text, HintOf(error, text));
  switch (error) {
    case Error::kTooManyRequests:
      return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED, message), kTooManyDelay);
    case Error::kNoSpace:
      return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY, message),
                            kNoSpaceDelay);
    case Error::kInvalidToken:
    case Error::kAuthFailed:
      return absl::UnauthenticatedError(message);
    case Error::kAuthNotEnabled:
      return absl::FailedPreconditionError(message);
    case Error::kPermissionDenied:
      return absl::PermissionDeniedError(message);
    case Error::kTooLarge:
      return Refusal(registry::v1::ERROR_REASON_TOO_LARGE, message);
    case Error::kLeaseNotFound:
      return absl::NotFoundError(message);
    case Error::kCompacted:
      return absl::OutOfRangeError(message);
    case Error::kUnavailable:
    case Error::kNone:
      break;
  }
  return Refusal(registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE, message);
}

absl::Status MakeMarked(Error error, const std::string& text) {
  absl::Status status = Make(error, text);
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(static_cast<int>(error))));
  return status;
}

}  // namespace

absl::Status FromEtcd(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const Error error = Find(status.error_message());
  if (error != Error::kNone) return MakeMarked(error, status.error_message());
  // Of the connection, or one that is not in the list: the message says that it is etcd's.
  const std::string message = absl::StrCat("etcd: ", status.error_message());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return Refusal(registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE, message);
  }
  return StatusFromGrpc(grpc::Status(status.error_code(), message, status.error_details()));
}

absl::Status FromEtcdText(const std::string& text) {
  // As Go prints a gRPC status.
  constexpr std::string_view kDescription = " desc = ";
  const size_t begin = text.find(kDescription);
  const std::string plain =
      begin == std::string::npos ? text : text.substr(begin + kDescription.size());
  return MakeMarked(Find(plain), plain);
}

Error ErrorOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  int error = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &error)) return Error::kNone;
  return static_cast<Error>(error);
}

bool IsTransient(const absl::Status& status) {
  switch (ErrorOf(status)) {
    case Error::kUnavailable:
    case Error::kTooManyRequests:
      return true;
    case Error::kNone:
      break;
    default:
      return false;
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kAborted:
      return true;
    default:
      return false;
  }
}

}  // namespace etcd
}  // namespace failback
