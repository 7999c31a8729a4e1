// The head of an HTTP/1.1 response as bytes. Pure.
//
//   FormatHead({200, "text/plain", …}) == "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n…\r\n\r\n"
//
// A header whose value would begin another line is left out: no handler can be led to write one.

#ifndef FAILBACK_GATEWAY_HTTP_RESPONSE_HEAD_H_
#define FAILBACK_GATEWAY_HTTP_RESPONSE_HEAD_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/http/message.h"

namespace failback::http {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct HeadOptions {
  bool keep_alive = true;
  // The body goes in chunks.
  bool chunked = false;
  // Of the body, where that is known.
  std::optional<size_t> content_length;
};

// `always` are sent too, unless the response has one of the same name.
std::string FormatHead(const Response& response, const HeaderList& always,
                       const HeadOptions& options);

// `If-None-Match` names this tag.
bool Matches(std::string_view if_none_match, const std::string& etag);

}  // namespace failback::http

#endif  // FAILBACK_GATEWAY_HTTP_RESPONSE_HEAD_H_
