#include "daemon/http/admin_message.h"

#include "absl/strings/str_cat.h"
#include "failback/admin/v1/admin.pb.h"
#include "google/protobuf/util/json_util.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ErrorJson(const absl::Status& status) {
  admin::v1::Error error;
  error.set_code(absl::StatusCodeToString(status.code()));
  error.set_message(std::string(status.message()));
  error.set_reason(ReasonText(status));
  for (const char* key : {"limit", "actual", "rank", "generation"}) {
    if (const auto value = ReasonMetadata(status, key); value.has_value()) {
      (*error.mutable_details())[key] = *value;
    }
  }
  if (const auto delay = RetryDelayOf(status); delay.has_value()) {
    (*error.mutable_details())["retry_delay"] = absl::FormatDuration(*delay);
  }
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(error, &json);
  return json;
}

}  // namespace

std::string AdminRequest::Query(const std::string& key) const {
  for (const auto& [name, value] : query) {
    if (name == key) return value;
  }
  return "";
}

bool AdminRequest::wants_text() const {
  const size_t text = accept.find("text/plain");
  return text != std::string::npos && text < accept.find("application/json");
}

AdminResponse AdminResponse::Json(std::string body) {
  AdminResponse response;
  response.body = std::move(body);
  return response;
}

AdminResponse AdminResponse::Text(std::string body) {
  AdminResponse response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(body);
  return response;
}

AdminResponse AdminResponse::Error(const absl::Status& status) {
  return Error(HttpStatusOf(status.code()), status);
}

AdminResponse AdminResponse::Error(int http_status, const absl::Status& status) {
  AdminResponse response;
  response.status = http_status;
  response.body = ErrorJson(status);
  if (const auto delay = RetryDelayOf(status); delay.has_value()) {
    response.headers.emplace_back(
        "Retry-After", absl::StrCat(absl::ToInt64Seconds(absl::Ceil(*delay, absl::Seconds(1)))));
  }
  return response;
}

}  // namespace failback
