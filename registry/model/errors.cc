#include "registry/model/errors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpcpp/support/status.h"
#include "registry/base/proto_time.h"
#include "registry/base/utf8.h"

namespace failback {
namespace {

using registry::v1::ErrorReason_Name;
using registry::v1::ErrorReason_Parse;

// The public names, which other languages' error-details libraries know; the bytes are
// those of the messages in failback/rpc/v1/status.proto.
constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";
constexpr char kReasonPrefix[] = "ERROR_REASON_";

absl::StatusCode CodeOf(ErrorReason reason) {
  switch (reason) {
    case registry::v1::ERROR_REASON_INVALID_FIELD:
    case registry::v1::ERROR_REASON_TOO_LARGE:
      return absl::StatusCode::kInvalidArgument;
    case registry::v1::ERROR_REASON_SESSION_UNKNOWN:
    case registry::v1::ERROR_REASON_SUPERSEDED:
    case registry::v1::ERROR_REASON_DRAINING:
      return absl::StatusCode::kFailedPrecondition;
    case registry::v1::ERROR_REASON_GENERATION_REUSED:
    case registry::v1::ERROR_REASON_REPLACED:
    case registry::v1::ERROR_REASON_SUBSCRIBER_SLOW:
    case registry::v1::ERROR_REASON_POSITION_LOST:
      return absl::StatusCode::kAborted;
    case registry::v1::ERROR_REASON_NOT_FOUND:
      return absl::StatusCode::kNotFound;
    case registry::v1::ERROR_REASON_UNSUPPORTED:
      return absl::StatusCode::kUnimplemented;
    case registry::v1::ERROR_REASON_CREDENTIALS_NEEDED:
      return absl::StatusCode::kUnauthenticated;
    case registry::v1::ERROR_REASON_ACCESS_DENIED:
    case registry::v1::ERROR_REASON_SESSION_NOT_OWNED:
      return absl::StatusCode::kPermissionDenied;
    case registry::v1::ERROR_REASON_LIMIT_REACHED:
    case registry::v1::ERROR_REASON_OVERLOADED:
      return absl::StatusCode::kResourceExhausted;
    case registry::v1::ERROR_REASON_STORE_READ_ONLY:
    case registry::v1::ERROR_REASON_SHUTTING_DOWN:
    case registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE:
    case registry::v1::ERROR_REASON_IDLE:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

void SetDetail(absl::Status& status, const char* url, const google::protobuf::MessageLite& detail) {
  status.SetPayload(url, absl::Cord(detail.SerializeAsString()));
}

template <typename Detail>
std::optional<Detail> GetDetail(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  if (!payload.has_value()) return std::nullopt;  // most have none
  Detail detail;
  if (!detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

std::optional<rpc::v1::ErrorInfo> ErrorInfoOf(const absl::Status& status) {
  auto info = GetDetail<rpc::v1::ErrorInfo>(status, kErrorInfoUrl);
  if (!info.has_value() || info->domain() != kErrorDomain) return std::nullopt;
  return info;
}

}  // namespace

absl::Status Refusal(ErrorReason reason, const std::string& message,
                     const std::map<std::string, std::string>& metadata) {
  absl::Status status(CodeOf(reason), message);
  rpc::v1::ErrorInfo info;
  info.set_reason(std::string(absl::StripPrefix(ErrorReason_Name(reason), kReasonPrefix)));
  info.set_domain(kErrorDomain);
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[key] = value;
  SetDetail(status, kErrorInfoUrl, info);
  return status;
}

absl::Status WithoutWords(const absl::Status& status) {
  absl::Status bare(status.code(), "");
  // A known one: what the peer sent as a reason is words too.
  const ErrorReason reason = ReasonOf(status);
  if (reason == registry::v1::ERROR_REASON_UNSPECIFIED) return bare;
  rpc::v1::ErrorInfo info;
  info.set_reason(std::string(absl::StripPrefix(ErrorReason_Name(reason), kReasonPrefix)));
  info.set_domain(kErrorDomain);
  SetDetail(bare, kErrorInfoUrl, info);
  return bare;
}

absl::Status InvalidField(const std::string& field, const std::string& description) {
  absl::Status status = Refusal(registry::v1::ERROR_REASON_INVALID_FIELD,
                                absl::StrCat(field, ": ", description), {{"field", field}});
  rpc::v1::BadRequest bad_request;
  auto* violation = bad_request.add_field_violations();
  violation->set_field(field);
  violation->set_description(description);
  SetDetail(status, kBadRequestUrl, bad_request);
  return status;
}

absl::Status SessionUnknown() {
  return Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                 "session_id: the session has ended, or never was: open a new one");
}

absl::Status SessionNotOwned() {
  return Refusal(registry::v1::ERROR_REASON_SESSION_NOT_OWNED,
                 "the session was opened by another caller: open one");
}

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  rpc::v1::RetryInfo info;
  *info.mutable_retry_delay() = ToProto(std::max(delay, absl::ZeroDuration()));
  SetDetail(status, kRetryInfoUrl, info);
  return status;
}

ErrorReason ReasonOf(const absl::Status& status) {
  ErrorReason reason = registry::v1::ERROR_REASON_UNSPECIFIED;
  if (const auto info = ErrorInfoOf(status); info.has_value()) {
    ErrorReason_Parse(absl::StrCat(kReasonPrefix, info->reason()), &reason);
  }
  return reason;
}

std::string ReasonText(const absl::Status& status) {
  const ErrorReason reason = ReasonOf(status);
  if (reason == registry::v1::ERROR_REASON_UNSPECIFIED) return "";
  return std::string(absl::StripPrefix(ErrorReason_Name(reason), kReasonPrefix));
}

std::map<std::string, std::string> ReasonMetadata(const absl::Status& status) {
  const auto info = ErrorInfoOf(status);
  if (!info.has_value()) return {};
  return {info->metadata().begin(), info->metadata().end()};
}

std::optional<std::string> ReasonMetadata(const absl::Status& status, const std::string& key) {
  const auto info = ErrorInfoOf(status);
  if (!info.has_value()) return std::nullopt;
  const auto it = info->metadata().find(key);
  if (it == info->metadata().end()) return std::nullopt;
  return it->second;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto info = GetDetail<rpc::v1::RetryInfo>(status, kRetryInfoUrl);
  if (!info.has_value()) return std::nullopt;
  const absl::Duration delay = FromProto(info->retry_delay());
  if (delay <= absl::ZeroDuration()) return std::nullopt;
  return delay;
}

rpc::v1::Status StatusToProto(const absl::Status& status) {
  rpc::v1::Status proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  // A message that came over the wire may be any bytes.
  proto.set_message(MadeUtf8(std::string(status.message())));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    auto* detail = proto.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(payload));
  });
  return proto;
}

absl::Status StatusFromProto(const rpc::v1::Status& proto) {
  absl::Status status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  for (const auto& detail : proto.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

grpc::Status StatusToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string details;
  const rpc::v1::Status proto = StatusToProto(status);
  if (proto.details_size() > 0) details = proto.SerializeAsString();
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), proto.message(), details);
}

absl::Status StatusFromGrpc(const grpc::Status& grpc_status) {
  if (grpc_status.ok()) return absl::OkStatus();
  absl::Status status(static_cast<absl::StatusCode>(grpc_status.error_code()),
                      grpc_status.error_message());
  rpc::v1::Status proto;
  if (!grpc_status.error_details().empty() && proto.ParseFromString(grpc_status.error_details())) {
    for (const auto& detail : proto.details()) {
      status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return status;
}

}  // namespace failback
