#include "gateway/http/response_head.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/beast/http/status.hpp"
#include "registry/base/version.h"

namespace failback::http {
namespace {

bool IsOneLine(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return c == '\r' || c == '\n' || c == '\0'; });
}

void Add(std::string_view name, std::string_view value, std::string* head) {
  if (!IsOneLine(name) || !IsOneLine(value)) return;
  head->append(name).append(": ").append(value).append("\r\n");
}

bool Has(const HeaderList& headers, const std::string& name) {
  return std::any_of(headers.begin(), headers.end(), [&](const auto& header) {
    return absl::EqualsIgnoreCase(header.first, name);
  });
}

}  // namespace

std::string FormatHead(const Response& response, const HeaderList& always,
                       const HeadOptions& options) {
  const auto reason = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(response.status)));
  std::string head;
  head.reserve(768);
  absl::StrAppend(&head, "HTTP/1.1 ", response.status, " ");
  head.append(reason.data(), reason.size()).append("\r\n");
  Add("Server", absl::StrCat("failback/", kVersion), &head);
  if (!response.etag.empty()) Add("ETag", absl::StrCat("\"", response.etag, "\""), &head);
  for (const auto& [name, value] : always) {
    if (!Has(response.headers, name)) Add(name, value, &head);
  }
  for (const auto& [name, value] : response.headers) Add(name, value, &head);
  if (!response.content_type.empty()) Add("Content-Type", response.content_type, &head);
  if (options.content_length.has_value()) {
    absl::StrAppend(&head, "Content-Length: ", *options.content_length, "\r\n");
  }
  if (options.chunked) head += "Transfer-Encoding: chunked\r\n";
  if (!options.keep_alive) head += "Connection: close\r\n";
  head += "\r\n";
  return head;
}

bool Matches(std::string_view if_none_match, const std::string& etag) {
  return !etag.empty() &&
         if_none_match.find(absl::StrCat("\"", etag, "\"")) != std::string_view::npos;
}

}  // namespace failback::http
