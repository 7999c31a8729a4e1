#include "gateway/http/message.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "registry/model/errors.h"

namespace failback::http {

std::string Request::Query(std::string_view key) const {
  for (const auto& [name, value] : query) {
    if (name == key) return value;
  }
  return "";
}

bool Request::HasQuery(std::string_view key) const {
  for (const auto& [name, value] : query) {
    if (name == key) return true;
  }
  return false;
}

std::string_view Request::Header(std::string_view name) const {
  const absl::string_view wanted(name.data(), name.size());
  for (const auto& [known, value] : headers) {
    if (absl::EqualsIgnoreCase(absl::string_view(known.data(), known.size()), wanted)) return value;
  }
  return "";
}

bool Request::wants_text() const {
  const std::string_view accept = Header("Accept");
  const size_t text = accept.find("text/plain");
  return text != std::string_view::npos && text < accept.find("application/json");
}

Response Response::Json(std::string body) {
  Response response;
  response.body = std::move(body);
  return response;
}

Response Response::Text(std::string body) {
  Response response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(body);
  return response;
}

int HttpStatusOf(const absl::Status& status) {
  switch (ReasonOf(status)) {
    case registry::v1::ERROR_REASON_SUPERSEDED:
    case registry::v1::ERROR_REASON_SESSION_UNKNOWN:
      return 409;
    case registry::v1::ERROR_REASON_TOO_LARGE:
      return 413;
    case registry::v1::ERROR_REASON_DRAINING:
      return 503;
    default:
      break;
  }
  switch (status.code()) {
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

void AddRetryAfter(const absl::Status& status, Response* response) {
  const auto delay = RetryDelayOf(status);
  if (!delay.has_value()) return;
  response->headers.emplace_back(
      "Retry-After", absl::StrCat(absl::ToInt64Seconds(absl::Ceil(*delay, absl::Seconds(1)))));
}

}  // namespace failback::http
